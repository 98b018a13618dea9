"""The swing of a loop: about 1 by chance, far more when classes come and go in waves."""

import math

import numpy as np
import pytest

from sbpipe.trainer.steering.swing import FEWEST, Swing, swing_of


def draws(shares: list[float], sizes: list[int], seed: int = 0) -> np.ndarray:
    """Class counts of batches drawn at random."""
    generator = np.random.default_rng(seed)
    return np.array([generator.multinomial(size, shares) for size in sizes])


@pytest.mark.parametrize("shares", [[0.1] * 10, [0.7, 0.2, 0.05, 0.05]], ids=["equal", "unequal"])
@pytest.mark.parametrize("sizes", [[128] * 32, [20, 128, 300, 64] * 8], ids=["one size", "many sizes"])
def test_chance_gives_one(shares: list[float], sizes: list[int]) -> None:
    found = [swing_of(draws(shares, sizes, seed)) for seed in range(400)]
    assert np.mean(found) == pytest.approx(1.0, abs=0.05)
    assert np.quantile(found, 0.95) < 1.6


def test_classes_that_come_in_waves_give_far_more() -> None:
    wave = [[96, 32] if (step // 4) % 2 else [32, 96] for step in range(32)]
    assert swing_of(wave) == pytest.approx(32 * 32**2 / 31 / (128 * 0.25))


def test_the_same_counts_every_time_do_not_swing_at_all() -> None:
    assert swing_of([[90, 30, 8]] * 20) == pytest.approx(0.0)


@pytest.mark.parametrize(
    "counts", [[], [[3, 5]], [[4, 0], [9, 0]], [[0, 0], [0, 0]]], ids=["none", "one", "one class", "empty"]
)
def test_there_is_no_swing_without_two_batches_of_two_classes(counts: list[list[int]]) -> None:
    assert math.isnan(swing_of(counts))


def test_a_batch_without_examples_changes_nothing_but_the_number_of_batches() -> None:
    assert math.isfinite(swing_of([[0, 0], [3, 5], [5, 3]]))


def test_there_is_a_value_once_enough_batches_have_come() -> None:
    swing, counts = Swing(), draws([0.25] * 4, [64] * FEWEST)
    for row in counts[:-1]:
        swing.add(row)
        assert swing.value is None
    swing.add(counts[-1])
    assert swing.value == pytest.approx(swing_of(counts))


def test_the_window_forgets_what_was_long_ago() -> None:
    swing, calm = Swing(window=16), draws([0.5, 0.5], [64] * 16)
    for row in [[64, 0], [0, 64]] * 8:
        swing.add(row)
    assert swing.value is not None
    assert swing.value > 10.0
    for row in calm:
        swing.add(row)
    assert swing.value == pytest.approx(swing_of(calm))


@pytest.mark.parametrize("num_batches", [0, 5, 40])
def test_a_restored_window_goes_on_as_the_first_would(num_batches: int) -> None:
    first, second = Swing(), Swing()
    for row in draws([0.3, 0.7], [64] * num_batches):
        first.add(row)
    second.add([1, 1])
    second.restore(first.state())
    for row in draws([0.3, 0.7], [64] * FEWEST, seed=1):
        first.add(row)
        second.add(row)
    assert second.value == first.value


def test_the_window_slides_for_as_long_as_batches_come() -> None:
    swing, counts = Swing(window=8), draws([0.3, 0.7], [64] * 200)
    for step, row in enumerate(counts, 1):
        swing.add(row)
        assert swing.state().tolist() == counts[max(0, step - 8) : step].tolist()
    assert swing.value == swing_of(counts[-8:])


def test_one_class_alone_has_no_value() -> None:
    swing = Swing()
    for _ in range(FEWEST):
        swing.add([8, 0])
    assert swing.value is None


def test_counts_that_are_reused_by_the_caller_are_kept_as_they_were() -> None:
    swing, row = Swing(), np.zeros(2)
    for step in range(FEWEST):
        row[:] = (4, 4 + step)
        swing.add(row)
    assert swing.value == pytest.approx(swing_of([[4, 4 + step] for step in range(FEWEST)]))
