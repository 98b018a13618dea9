"""Costs of a short run from its events: made-up lines in, the numbers that a plan goes by out."""

from typing import Any

import pytest

from sbpipe.process.gauge_samples import Window, selector_costs, trainer_costs

EVER = Window(0.0, 1e9)


def a_step(begin: float, *, wait: float = 0.0) -> dict[str, Any]:
    """A step of 100 ms whose publish takes 4 of them, after a wait."""
    spans = {"wait": [begin - wait, wait], "forward": [begin, 0.03], "publish": [begin + 0.09, 0.004]}
    return {"kind": "step", "spans": spans | {"view": [begin + 0.01, 0.02]}}


def steps(count: int, *, wait: float = 0.0) -> list[dict[str, Any]]:
    return [a_step(1.0 + k * (0.1 + wait), wait=wait) for k in range(count)]


def leases(count: int, *, candidates: int = 100, applies: bool = True) -> list[dict[str, Any]]:
    """Each waited for 2 ms, scored in 50, applied in 3, and 5 ms for all else."""
    found, now = [], 1.0
    for _ in range(count):
        began = now + 0.002
        spans = {"idle": [now, 0.002], "view": [began, 0.01], "score": [began, 0.03], "select": [began, 0.01]}
        spans |= {"await": [began, 0.004], "apply": [began, 0.003 if applies else 0.0]}
        found.append({"kind": "selection", "candidates": candidates, "spans": spans})
        now = began + 0.055 + (0.003 if applies else 0.0)
    return found


def test_a_step_is_what_the_loop_takes_without_waits_and_publishes() -> None:
    costs = trainer_costs(steps(20, wait=0.05), EVER)
    assert costs["step_ms"] == pytest.approx(96.0)
    assert costs["publish_ms"] == pytest.approx(4.0)
    assert costs["load_ms"] == pytest.approx(20.0), "beside the step: no part of it"
    assert costs["step_spread"] == pytest.approx(0.0, abs=1e-6)


def test_a_lease_costs_what_its_candidates_and_weights_do_not() -> None:
    costs = selector_costs(leases(20), EVER)
    assert costs is not None
    assert costs["score_us"] == pytest.approx(500.0)
    assert costs["apply_ms"] == pytest.approx(3.0)
    assert costs["lease_ms"] == pytest.approx(5.0), "what is read, encoded, sent and written"
    assert costs["transfer_ms"] == 0.0


def test_the_wait_for_the_welcome_belongs_to_no_lease() -> None:
    first, *others = leases(10)
    first["spans"]["idle"] = [0.1, 0.8, *first["spans"]["idle"]]
    assert selector_costs([first, *others], EVER) == selector_costs(leases(10), EVER)


def test_leases_that_find_the_weights_they_have_say_nothing_of_an_apply() -> None:
    costs = selector_costs([*leases(1), *leases(10, applies=False)], EVER)
    assert costs is not None
    assert costs["apply_ms"] == pytest.approx(3.0)


def test_only_what_lies_within_the_stretch_counts() -> None:
    assert trainer_costs(steps(20), Window(1.05, 1.55))["steps"] == 4
    found = selector_costs(leases(20), Window(1.01, 1.2))
    assert found is not None
    assert found["leases"] == 2
    assert selector_costs(leases(20), Window(5.0, 6.0)) is None


def test_without_a_lease_there_are_no_costs() -> None:
    assert selector_costs([], EVER) is None
