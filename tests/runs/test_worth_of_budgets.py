"""Worth k: read off random's curve, without extrapolation, with an interval, and refused where it is flat."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbpipe.runs.study.arm import Arm
from sbpipe.runs.study.trial import Trial
from sbpipe.runs.study.worth import (
    ABOVE,
    BELOW,
    Budget,
    analyse_worth,
    monotone,
    stated_interval,
    stated_worth,
    updates_to,
    worth_of,
)

UPDATES = [50.0, 100.0, 200.0, 400.0]
RANDOM = [0.4, 0.3, 0.2, 0.1]


def budgets_of(*errors_by_seed: list[float]) -> list[Budget]:
    """One list of errors per seed, each over UPDATES."""
    return [
        Budget(at, {seed: errors[k] for seed, errors in enumerate(errors_by_seed)})
        for k, at in enumerate(UPDATES)
    ]


def arm_of(name: str, updates: int, *errors: float) -> Arm:
    summary = [{"steps": updates, "eval.error": error} for error in errors]
    return Arm(name, [Trial(name, seed, "finished", [], numbers) for seed, numbers in enumerate(summary)])


def test_a_policy_that_ends_where_random_ends_after_twice_the_updates_is_worth_two() -> None:
    assert updates_to(0.2, UPDATES, RANDOM) == 200.0
    worth = worth_of({0: 0.2}, 100.0, budgets_of(RANDOM))
    assert worth is not None
    assert worth.k == pytest.approx(2.0)


def test_between_two_budgets_it_goes_by_the_logarithm_of_the_updates() -> None:
    assert updates_to(0.15, UPDATES, RANDOM) == pytest.approx(math.sqrt(200.0 * 400.0))


def test_nothing_is_extrapolated() -> None:
    assert updates_to(0.05, UPDATES, RANDOM) == ABOVE
    assert updates_to(0.45, UPDATES, RANDOM) == BELOW
    assert updates_to(0.4, UPDATES, RANDOM) == 50.0
    assert updates_to(0.1, UPDATES, RANDOM) == 400.0


def test_rounding_leads_beyond_no_budget() -> None:
    assert 488 * (503 / 488) > 503
    arms = [arm_of("r488", 488, 0.3), arm_of("r503", 503, 0.2), arm_of("p", 503, 0.2)]
    assert stated_worth(analyse_worth(arms, ["r488", "r503"])["policies"]["p"]) == "1.00"


def test_of_a_plateau_the_fewest_updates_count() -> None:
    assert updates_to(0.2, UPDATES, [0.3, 0.2, 0.2, 0.2]) == 100.0


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=8))
def test_a_curve_made_monotone_never_rises_and_keeps_its_mean(errors: list[float]) -> None:
    curve = monotone(errors)
    assert all(left >= right - 1e-12 for left, right in itertools.pairwise(curve))
    assert sum(curve) == pytest.approx(sum(errors))
    assert monotone(sorted(errors, reverse=True)) == sorted(errors, reverse=True)


def test_the_interval_holds_k_and_is_wider_where_seeds_differ_more() -> None:
    random = budgets_of(RANDOM, [0.41, 0.31, 0.21, 0.11], [0.39, 0.29, 0.19, 0.09])
    narrow = worth_of({0: 0.2, 1: 0.21, 2: 0.19}, 100.0, random)
    wide = worth_of({0: 0.2, 1: 0.26, 2: 0.14}, 100.0, random)
    assert narrow is not None
    assert wide is not None
    # Policy and random of one seed rise and fall together: paired, nothing is left to chance.
    assert narrow.low == pytest.approx(2.0)
    assert narrow.high == pytest.approx(2.0)
    assert wide.low is not None
    assert wide.high is not None
    assert wide.low < 2.0 < wide.high
    assert wide == worth_of({0: 0.2, 1: 0.26, 2: 0.14}, 100.0, random), "the draws are always the same"


def test_one_seed_has_no_interval_and_nothing_finished_no_worth() -> None:
    one = worth_of({0: 0.2}, 100.0, budgets_of(RANDOM))
    assert one is not None
    assert one.low is None
    assert worth_of({}, 100.0, budgets_of(RANDOM)) is None
    assert worth_of({0: 0.2}, 100.0, []) is None


def test_beyond_the_budgets_only_the_side_is_told() -> None:
    arms = [arm_of(f"r{at:g}", int(at), error) for at, error in zip(UPDATES, RANDOM, strict=True)]
    arms += [arm_of("good", 100, 0.01), arm_of("bad", 100, 0.9), arm_of("fair", 100, 0.2)]
    policies = analyse_worth(arms, [f"r{at:g}" for at in UPDATES])["policies"]
    assert [stated_worth(policies[name]) for name in ("good", "bad", "fair")] == ["> 4", "< 0.5", "2.00"]
    assert policies["good"]["worth"] is None
    assert policies["good"]["beyond"] == "above"


def test_an_interval_may_be_open_at_one_end() -> None:
    arms = [arm_of(f"r{at:g}", int(at), error, error) for at, error in zip(UPDATES, RANDOM, strict=True)]
    found = analyse_worth([*arms, arm_of("p", 100, 0.2, 0.05)], [arm.name for arm in arms])
    assert stated_interval(found["policies"]["p"]) == "2.00 to > 4"


def test_where_random_hardly_falls_any_more_k_is_called_undetermined() -> None:
    curve = [0.4, 0.100, 0.098, 0.096]
    arms = [arm_of(f"r{at:g}", int(at), e - 0.01, e + 0.01) for at, e in zip(UPDATES, curve, strict=True)]
    names = [arm.name for arm in arms]
    found = analyse_worth([*arms, arm_of("p", 100, 0.097, 0.097), arm_of("q", 100, 0.2, 0.2)], names)
    assert found["flat_from"] == 100.0
    assert found["policies"]["p"]["is_flat"]
    assert not found["policies"]["q"]["is_flat"]
    falling = [arm_of(f"r{at:g}", int(at), e - 0.01, e + 0.01) for at, e in zip(UPDATES, RANDOM, strict=True)]
    assert analyse_worth(falling, names)["flat_from"] is None
