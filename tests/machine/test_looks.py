"""Sums over many rounds from a few of them, and how far off they are."""

import math

import numpy as np
import pytest

from sbpipe.machine.looks import Looks


def looks_at(computed_s: list[float], num_between: int) -> Looks:
    """So many rounds before each look, and as many after the last."""
    looks = Looks()
    for one_s in computed_s:
        for _ in range(num_between):
            looks.skip()
        looks.add(one_s)
    for _ in range(num_between):
        looks.skip()
    return looks


def test_a_rare_long_round_is_part_of_the_sum() -> None:
    assert looks_at([1.0, 1.0, 5.0, 1.0, 1.0], 10).total_s == pytest.approx(10 * (6 + 4))


def test_each_look_stands_for_the_rounds_nearest_to_it() -> None:
    looks = Looks()
    for number in range(1, 301):  # the last two thirds compute three times as long, and have one look
        looks.add(1.0) if number in (20, 60) else looks.add(3.0) if number == 140 else looks.skip()
    assert looks.total_s == pytest.approx(98 * 1.0 + 199 * 3.0, rel=0.01)


def test_the_error_is_not_known_before_the_second_look() -> None:
    assert looks_at([], 5).error_s == looks_at([1.0], 5).error_s == math.inf
    assert looks_at([1.0, 1.0], 5).error_s == 0.0


def test_sums_are_off_by_their_standard_error_and_not_to_one_side() -> None:
    rng = np.random.default_rng(0)
    offs = []
    for _ in range(400):
        rounds_s = rng.lognormal(0.0, 0.5, 400)
        looks, truth_s = Looks(), 0.0
        for number, round_s in enumerate(rounds_s):
            if number % 20 == 10:
                looks.add(float(round_s))
            else:
                looks.skip()
                truth_s += round_s
        offs.append((looks.total_s - truth_s) / looks.error_s)
    assert abs(np.mean(offs)) < 0.3, "of a standard error"
    assert 0.8 < np.std(offs) < 1.4


def test_a_drift_is_no_error() -> None:
    drifting = looks_at(list(np.linspace(1.0, 2.0, 21)), 10)
    assert drifting.total_s == pytest.approx(220 * 1.5, rel=1e-9)
    assert drifting.error_s < 0.01 * drifting.total_s
