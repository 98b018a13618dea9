"""Many selectors behind a line: four numbers in, the forecast out; and beside it a run of the real stream."""

import math
from dataclasses import replace

import pytest
from support.slow_line import FarRun
from support.slow_line import Line as FarLine

from sbpipe.config import resolve
from sbpipe.machine.line import Credit, Line, filled, mean_ceil, passage, staleness, transfer_ms
from sbpipe.machine.planner import Costs, forecast
from sbpipe.process.forecasting import credit_of

BATCH, KEEP, STEP_MS = 128, 0.25, 100.0
SETTINGS = {"selection.keep": KEEP, "train.batch_size": BATCH, "sync.depth": 2}


def found(
    credit: Credit, line: Line, *, work_ms: float = 50.0, selector_ms: float = 50.0
) -> tuple[float, float]:
    """Staleness and share that is filled."""
    one = passage(
        step_ms=STEP_MS, selector_ms=selector_ms, work_ms=work_ms, credit=credit, line=line, spread_ms=0.0
    )
    return staleness(one, step_ms=STEP_MS, interval=1, line=line), filled(one, line)


def test_without_a_line_scores_are_as_old_as_there_are_batches_out() -> None:
    assert found(Credit(256, 1.0), Line()) == (1.0, 0.0)
    assert found(Credit(256, 4.5), Line()) == (pytest.approx(4.5, abs=0.02), 0.0)


def test_weights_that_arrive_in_the_middle_of_a_step_are_a_whole_step_late() -> None:
    assert found(Credit(256, 2.0), Line(latency_ms=20.0))[0] == pytest.approx(3.0, abs=0.01)
    assert found(Credit(256, 2.0), Line(transfer_ms=80.0))[0] == pytest.approx(3.0, abs=0.01)


def test_versions_that_take_longer_than_a_step_come_one_after_the_other() -> None:
    assert found(Credit(256, 2.0), Line(transfer_ms=300.0))[0] == pytest.approx(2 + 3 + 1.5 + 0.5, abs=0.01)


def test_what_is_out_must_outlast_a_round_trip_or_batches_are_filled() -> None:
    far = Line(latency_ms=100.0)
    assert found(Credit(256, 3.0), far)[1] == 0.0
    assert found(Credit(256, 1.5), far)[1] == pytest.approx(1 - 1.5 / (2 + 0.5 + 0.5))


def test_slow_selectors_fill_what_they_do_not_score_and_have_leases_lying_before_them() -> None:
    age, share = found(Credit(256, 3.0), Line(), selector_ms=200.0, work_ms=400.0)
    assert share == pytest.approx(0.5)
    assert 3.0 < age < 6.0, "six steps under way, of which some lie unscored"


def test_a_stall_is_covered_by_what_is_on_hand() -> None:
    stalls = Line(stall_ms=300.0, stall_every_ms=3000.0)
    assert found(Credit(256, 4.0), stalls)[1] == pytest.approx(0.0)
    assert found(Credit(256, 1.5), stalls)[1] == pytest.approx((300 - 100) / 3000, abs=0.001)


def test_a_snapshot_takes_what_the_line_or_its_window_of_pieces_allows() -> None:
    assert transfer_ms(1e9, bytes_per_s=1.25e8, hosts=8) == pytest.approx(64_000)
    # Eight windows: the first goes out at once, each of the others a round trip after the one before.
    assert transfer_ms(8e6, bytes_per_s=1e12, latency_ms=50.0, window_bytes=1e6) == pytest.approx(700)


def test_the_mean_of_whole_steps() -> None:
    assert mean_ceil(0.0, 0.0) == 0.0
    assert mean_ceil(0.4, 0.4) == 1.0
    assert mean_ceil(-0.5, 0.5) == pytest.approx(0.5)
    assert mean_ceil(0.0, 3.0) == pytest.approx(2.0)


# --- beside the real stream, on a simulated clock -------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 8, 64])
@pytest.mark.parametrize(
    ("capacity", "line"),
    [
        (1.5, Line()),
        (4.0, Line(latency_ms=20.0)),
        (1.5, Line(latency_ms=10.0, transfer_ms=300.0)),
        (0.6, Line()),
    ],
    ids=["near", "20 ms", "large weights", "slow selectors"],
)
def test_a_run_meets_the_staleness_and_the_fills_that_were_forecast(
    count: int, capacity: float, line: Line
) -> None:
    speed = capacity * BATCH / KEEP / (STEP_MS / 1e3) / count
    config = resolve(SETTINGS | {"train.steps": 10**6})
    costs = Costs(BATCH, STEP_MS, 1e6 / speed, load_ms=5.0, selectors=count)
    costs = replace(costs, latency_ms=line.latency_ms, transfer_ms=line.transfer_ms)
    plan = forecast(
        costs, keep=KEEP, interval=1, lending=lambda costs, keep: credit_of(costs, keep, 1, config)
    )
    far = FarLine(line.latency_ms / 1e3, line.transfer_ms / 1e3)
    run = FarRun(config, [speed] * count, far, step_s=STEP_MS / 1e3)
    run.scatter(0.1, 0.0, seed=0)
    run.run(60)
    seen = run.run(120)
    assert plan.staleness == pytest.approx(seen.staleness, rel=0.15)
    assert plan.fills == pytest.approx(seen.filled, abs=0.06)


@pytest.mark.parametrize("count", [2, 8, 64])
def test_at_100_ms_both_are_as_forecast_too(count: int) -> None:
    speed = 1.5 * BATCH / KEEP / (STEP_MS / 1e3) / count
    config = resolve(SETTINGS | {"train.steps": 10**6})
    costs = Costs(BATCH, STEP_MS, 1e6 / speed, load_ms=5.0, selectors=count, latency_ms=100.0)
    plan = forecast(
        costs, keep=KEEP, interval=1, lending=lambda costs, keep: credit_of(costs, keep, 1, config)
    )
    run = FarRun(config, [speed] * count, FarLine(0.1), step_s=STEP_MS / 1e3)
    run.scatter(0.1, 0.0, seed=0)
    run.run(60)
    seen = run.run(120)
    assert plan.staleness == pytest.approx(seen.staleness, rel=0.1)
    assert plan.fills == pytest.approx(seen.filled, abs=0.1)


def test_the_credit_is_what_the_trainers_own_rules_give() -> None:
    config = resolve(SETTINGS)
    eight = Costs(BATCH, STEP_MS, 8 * 130.0, load_ms=5.0, selectors=8)
    assert credit_of(eight, KEEP, 1, config) == Credit(256, 4.0), "seven are needed: 3.5 batches... and one"
    far = replace(eight, selectors=1, score_us=130.0, latency_ms=150.0)
    deep = resolve(SETTINGS | {"sync.depth": "auto"})
    assert credit_of(far, KEEP, 1, config).batches == 1.5
    assert credit_of(far, KEEP, 1, deep).batches == 1 + math.ceil(300 / 100) - 1 + 0.5
