"""The planner: four numbers in, the forecast that follows from them out."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbpipe.machine.line import Credit
from sbpipe.machine.planner import (
    Costs,
    advice,
    depth_reached,
    forecast,
    interval_reached,
    keep_reached,
    remedy,
)

FAST = Costs(batch_size=100, step_ms=100.0, score_us=200.0)
"""Scoring a batch's worth of candidates takes 20 ms: 80 ms at keep 1/4."""
SLOW = replace(FAST, score_us=1000.0)
"""100 ms: 400 ms at keep 1/4."""


def test_a_selector_that_keeps_up_costs_nothing() -> None:
    plan = forecast(FAST, keep=0.25, interval=1)
    assert (plan.period_ms, plan.idle, plan.fills) == (100.0, 0.0, 0.0)
    assert plan.selector_ms == pytest.approx(80.0)
    assert plan.candidates == pytest.approx(4.0), "four candidates considered for each trained"


def test_a_slow_selector_is_waited_for_or_the_rest_is_filled() -> None:
    plan = forecast(SLOW, keep=0.25, interval=1)
    assert plan.period_ms == pytest.approx(400.0)
    assert plan.idle == pytest.approx(0.75)
    assert plan.fills == pytest.approx(0.75)
    assert plan.fill_ms == plan.plain_ms, "filled, it takes what plain training takes"


def test_two_selectors_halve_what_each_has_to_do() -> None:
    plan = forecast(replace(SLOW, selectors=2), keep=0.25, interval=1)
    assert plan.period_ms == pytest.approx(200.0)


def test_keep_auto_is_what_is_scored_in_a_step() -> None:
    assert keep_reached(FAST, 1) == pytest.approx(20 / 95)
    assert keep_reached(SLOW, 1) == 1.0, (
        "more than a step's time for the batch itself: nothing to choose from"
    )
    assert keep_reached(replace(FAST, score_us=20.0), 1, (0.1, 0.5)) == 0.1
    assert keep_reached(SLOW, 1, (0.1, 0.5)) == 0.5
    assert forecast(FAST, keep=None, interval=1).idle == 0.0


def test_keep_auto_leaves_time_for_what_leases_cost() -> None:
    assert keep_reached(replace(FAST, lease_ms=5.0), 1) == pytest.approx(20 / 85), "two for each batch"


@given(score_us=st.floats(1.0, 800.0), apply_ms=st.floats(0.0, 20.0), interval=st.integers(1, 16))
def test_with_keep_auto_nobody_waits_unless_nothing_is_left_to_choose(
    score_us: float, apply_ms: float, interval: int
) -> None:
    plan = forecast(replace(FAST, score_us=score_us, apply_ms=apply_ms), keep=None, interval=interval)
    assert plan.keep == 1.0 or plan.idle == pytest.approx(0.0, abs=1e-9)


def test_interval_auto_follows_the_dearest_of_publish_arrival_and_apply() -> None:
    assert interval_reached(FAST, 0.25) == 1
    assert interval_reached(replace(FAST, publish_ms=7.5), 0.25) == 8
    assert interval_reached(replace(FAST, transfer_ms=350.0), 0.25) == 4
    assert interval_reached(replace(FAST, apply_ms=60.0), 0.25) == 4  # of 95 - 80 ms that are left


def test_a_need_near_what_is_in_use_changes_no_interval() -> None:
    assert interval_reached(replace(FAST, publish_ms=1.4), 0.25) == 1
    assert interval_reached(replace(FAST, publish_ms=1.6), 0.25) == 2


def test_with_keep_auto_applying_may_take_a_fifth_of_the_selectors_time_and_keep_makes_room_for_more() -> (
    None
):
    busy = replace(FAST, score_us=250.0, apply_ms=15.0)
    assert interval_reached(busy, 0.25) == 3  # scoring takes the whole step: a twentieth is left
    assert interval_reached(busy, None, (0.25, 0.5)) == 1
    assert interval_reached(replace(busy, apply_ms=40.0), None, (0.25, 0.5)) == 1, "fewer are scored"
    assert interval_reached(replace(busy, apply_ms=40.0), None, (0.25, 0.25)) == 2


def test_interval_and_depth_stay_within_the_bound_on_staleness() -> None:
    far = replace(FAST, publish_ms=50.0, latency_ms=400.0)
    assert (interval_reached(far, 0.25), depth_reached(far, interval=1)) == (50, 8)
    assert interval_reached(far, 0.25, max_staleness=5) == 4
    assert depth_reached(far, interval=1, max_staleness=5) == 5


def test_staleness_grows_with_the_interval_and_the_transfer() -> None:
    assert forecast(FAST, keep=0.25, interval=1).staleness == 1.0
    assert forecast(FAST, keep=0.25, interval=9).staleness == 5.0
    slow = replace(FAST, transfer_ms=200.0)
    assert forecast(slow, keep=0.25, interval=2).staleness == 1 + 2 + 0.5
    assert forecast(slow, keep=0.25, interval=1).staleness == 1 + 2 + 0.5 + 2 / 2, "one after the other"


def test_loading_that_takes_longer_than_a_step_is_the_period() -> None:
    plan = forecast(replace(FAST, load_ms=300.0), keep=0.25, interval=1)
    assert plan.fill_ms == 300.0
    assert plan.period_ms == pytest.approx(380.0), "who waits loads what was selected since the step began"


def test_a_side_is_faster_while_the_other_rests() -> None:
    shared = replace(FAST, step_alone=0.7, score_alone=0.6)
    quick = forecast(shared, keep=0.25, interval=1)
    assert quick.period_ms == pytest.approx(80 + 0.7 * 20), "for a fifth of a step the selector rests"
    slow = forecast(replace(shared, score_us=1000.0), keep=0.25, interval=1)
    assert slow.period_ms == pytest.approx(100 + 0.6 * 300)
    assert slow.idle == pytest.approx(1 - 100 / 280)
    assert quick.plain_ms == pytest.approx(70.0), "plain training has the machine to itself"


def test_where_both_sides_vary_every_step_waits_for_the_later_one() -> None:
    even = replace(FAST, score_us=250.0)  # 100 ms at keep 1/4: as long as a step
    assert forecast(even, keep=0.25, interval=1).idle == 0.0
    varied = forecast(replace(even, step_spread=0.3, score_spread=0.4), keep=0.25, interval=1)
    assert varied.period_ms == pytest.approx(100 + 50 / math.sqrt(2 * math.pi))  # E max of two normals
    assert varied.idle == pytest.approx(1 - 100 / varied.period_ms)
    far = forecast(replace(FAST, score_us=25.0, step_spread=0.1), keep=0.25, interval=1)
    assert far.idle == pytest.approx(0.0, abs=1e-6), "a selector that is ten times as fast is never late"


def test_a_lease_costs_more_than_its_candidates() -> None:
    costs = replace(SLOW, lease_ms=6.0)
    whole = forecast(costs, keep=0.25, interval=1, lending=lambda costs, keep: Credit(400, 1.0))
    assert whole.selector_ms == pytest.approx(406.0)
    assert whole.period_ms == pytest.approx(406.0)
    halves = forecast(costs, keep=0.25, interval=1, lending=lambda costs, keep: Credit(200, 1.5))
    assert halves.selector_ms == pytest.approx(412.0), "two leases for a batch"
    assert halves.fills > forecast(SLOW, keep=0.25, interval=1).fills


def test_who_waits_waits_for_messages_too_unless_more_is_out() -> None:
    costs = replace(SLOW, message_ms=5.0)
    assert forecast(costs, keep=0.25, interval=1).period_ms == pytest.approx(410.0)
    two = forecast(costs, keep=0.25, interval=1, lending=lambda costs, keep: Credit(400, 2.0))
    assert two.period_ms == pytest.approx(400.0)
    assert forecast(replace(FAST, message_ms=5.0), keep=0.25, interval=1).period_ms == 100.0


def test_a_batch_that_is_late_is_not_loaded_beside_a_step() -> None:
    assert forecast(replace(SLOW, load_ms=30.0), keep=0.25, interval=1).period_ms == pytest.approx(430.0)


def test_break_even_is_what_both_devices_would_give_by_training() -> None:
    alike = forecast(replace(FAST, second_speed=1.0, efficiency=0.9), keep=0.25, interval=1)
    weak = forecast(replace(FAST, second_speed=0.1), keep=0.25, interval=1)
    assert alike.break_even == pytest.approx(1.9)
    assert weak.break_even == pytest.approx(1.09)
    slow = forecast(replace(SLOW, second_speed=0.1), keep=0.25, interval=1)
    assert slow.break_even_waiting == pytest.approx(4 * 1.09)
    assert slow.break_even == pytest.approx(1 + 0.09 / 0.25), (
        "a quarter is chosen: its worth counts for a quarter"
    )


@pytest.mark.parametrize(
    ("second_speed", "worth", "says"),
    [
        (0.05, None, "use it"),
        (1.0, None, "measure"),
        (3.0, None, "do not use it"),
        (1.0, 2.5, "use it: worth 2.50"),
        (1.0, 1.5, "do not use it: worth 1.50"),
    ],
)
def test_the_advice_follows_from_the_break_even(second_speed: float, worth: float | None, says: str) -> None:
    plan = forecast(replace(FAST, second_speed=second_speed), keep=0.25, interval=1)
    assert advice(plan, worth).startswith(says)


def test_a_selector_that_does_not_keep_up_is_told_a_keep_rate_that_it_can() -> None:
    assert remedy(forecast(FAST, keep=0.25, interval=1)) == ""
    slow = forecast(SLOW, keep=0.25, interval=1)
    assert "keep 1.00" in remedy(slow)
    assert "faster precision" in remedy(slow)
    assert "faster precision" not in remedy(slow, is_fastest=True)


def test_a_line_that_is_longer_than_what_is_leased_ahead_is_told_to_lease_further() -> None:
    far = replace(FAST, latency_ms=150.0)
    short = forecast(far, keep=0.25, interval=1, lending=lambda costs, keep: Credit(400, 1.5))
    assert short.fills == pytest.approx(1 - 1.5 / (3.0 + 0.8 + 0.5))
    assert "sync.depth" in remedy(short)
    deep = forecast(far, keep=0.25, interval=1, lending=lambda costs, keep: Credit(400, 4.5))
    assert (deep.fills, remedy(deep)) == (0.0, "")


def test_selectors_that_are_late_by_chance_alone_are_not_told_to_lease_further() -> None:
    noisy = replace(FAST, score_us=245.0, step_spread=0.3, score_spread=0.4)
    plan = forecast(noisy, keep=0.25, interval=1, lending=lambda costs, keep: Credit(200, 1.5))
    assert plan.fills > 0.05
    assert "sync.depth" not in remedy(plan)
