"""How well the bench of waits knows a rate."""

import numpy as np
import pytest

from sbpipe.bench.waiting import error_of_median


def test_the_error_of_a_median_is_what_repeated_draws_show_and_ignores_a_few_far_away() -> None:
    rng = np.random.default_rng(0)
    draws = rng.normal(1.0, 0.03, (4000, 25))
    draws[:, :2] += 1.0
    seen = np.median(draws, axis=1).std()
    assert np.mean([error_of_median(list(row)) for row in draws]) == pytest.approx(seen, rel=0.15)


def test_values_that_are_alike_have_a_median_without_an_error() -> None:
    assert error_of_median([0.98] * 9) == 0.0
