"""The speed of a selector is steady while its answers scatter, and follows when it has changed."""

import numpy as np
import pytest

from sbpipe.trainer.serving.speed import CHANGES, MOST, Speed


def answers(speed: float, count: int, scatter: float, seed: int) -> list[tuple[int, float]]:
    """So many of 256 candidates each, at a speed on average."""
    times = np.random.default_rng(seed).lognormal(0.0, scatter, count)
    return [(256, float(256 / speed * time)) for time in times / times.mean()]


@pytest.mark.parametrize("seed", range(5))
def test_a_burst_of_short_answers_does_not_move_it_once_many_are_known(seed: int) -> None:
    speed, seen = Speed(), []
    for number, answer in enumerate(answers(1000.0, 300, 0.4, seed)):
        speed.add(*answer)
        seen += [speed.rate or 0.0] if number >= MOST else []
    assert max(seen) / min(seen) < 1.3
    assert np.mean(seen) == pytest.approx(1000.0, rel=0.05)


@pytest.mark.parametrize("factor", [0.5, 2.0])
@pytest.mark.parametrize(("scatter", "known_after"), [(0.1, 8), (0.4, 32)])
def test_it_is_known_soon_after_it_was_halved_or_doubled(
    factor: float, scatter: float, known_after: int
) -> None:
    speed = Speed()
    for answer in answers(1000.0, MOST, scatter, 0) + answers(factor * 1000.0, known_after, scatter, 1):
        speed.add(*answer)
    assert speed.rate == pytest.approx(factor * 1000.0, rel=0.2)


def test_steady_answers_are_never_dropped_and_a_small_change_takes_many() -> None:
    steady = [(100, 0.1)] * 40
    assert num_alike(steady) == 40
    assert num_alike([*steady, *[(100, 0.115)] * 8]) == 48
    assert num_alike([*steady, *[(100, 0.115)] * 23]) == 63
    assert num_alike([*steady, *[(100, 0.115)] * 24]) == max(CHANGES) // 2
    assert num_alike([(100, 0.1), (0, 0.1)]) == 2, "an answer without candidates tells nothing"


def num_alike(answers: list[tuple[int, float]]) -> int:
    speed = Speed()
    for answer in answers:
        speed.add(*answer)
    return speed.num_alike


def test_before_the_first_answer_it_is_not_known() -> None:
    assert Speed().rate is None
