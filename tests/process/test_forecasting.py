"""What a plan makes of the settings is what a run makes of them."""

import pytest

from sbpipe.config import Config, resolve
from sbpipe.machine.planner import Costs
from sbpipe.machine.sync_needs import SyncCosts
from sbpipe.process.forecasting import about_auto, credit_of, forecasts
from sbpipe.runs.events import EventLog
from sbpipe.runs.spans import Spans
from sbpipe.trainer.pacing import Pacer, SyncPace
from sbpipe.trainer.serving.peers import Roster

STEP_MS, KEEP = 31.0, 0.25


def config_of(**given: object) -> Config:
    return resolve({"train.steps": 100, **{key.replace("__", "."): value for key, value in given.items()}})


def pace_of(config: Config, costs: Costs) -> SyncPace:
    """Interval and depth of a run that measures these costs decision after decision."""
    pace = SyncPace.of(config)
    roster = Roster(lost_after_s=1.0, hung_after_s=1.0)
    pacer = Pacer(config, pace, Spans(), roster, EventLog(None, "trainer"))
    measured = SyncCosts(
        step_s=costs.step_ms / 1e3,
        publish_s=costs.publish_ms / 1e3,
        apply_s=costs.apply_ms / 1e3,
        transfer_s=(costs.transfer_ms + 2 * costs.latency_ms) / 1e3,
        score_s=costs.batch_size / KEEP * costs.score_us / 1e6,
        round_trip_s=2 * costs.latency_ms / 1e3,
    )
    for _ in range(8):
        pacer.decide(measured)
    return pace


@pytest.mark.parametrize(
    "costs",
    [
        {"publish_ms": 0.4},  # 1.3 hundredths of a step
        {"publish_ms": 0.6},
        {"apply_ms": 14.0},
        {"transfer_ms": 45.0},
        {"latency_ms": 20.0},  # there and back in 1.3 steps
        {"latency_ms": 60.0, "publish_ms": 3.0},
    ],
    ids=str,
)
@pytest.mark.parametrize("bound", [0, 4])
def test_interval_and_depth_are_those_that_a_run_comes_to(costs: dict[str, float], bound: int) -> None:
    config = config_of(selection__keep=KEEP, sync__max_staleness=bound, selection__late="wait")
    given = Costs(128, STEP_MS, score_us=40.0, **costs)
    pace = pace_of(config, given)
    (plan, _) = forecasts(given, config)
    assert plan.interval == pace.interval
    assert credit_of(given, KEEP, plan.interval, config).batches == pace.depth - 1


def test_under_a_clock_weights_go_out_as_the_clock_says() -> None:
    config = config_of(mode="fixed-lag", selection__keep=KEEP)
    assert forecasts(Costs(128, STEP_MS, score_us=40.0, publish_ms=9.0), config)[0].interval == 1


@pytest.mark.parametrize(
    ("budget", "effective", "keep", "says"),
    [
        ({"train.steps": 100}, None, 1 / 4, "may go down to 0.125"),
        ({"train.steps": 100}, 0.18, 0.18, "no lower than 0.180"),
        ({"train.steps": 100}, 0.05, 1 / 8, "no lower than 0.125"),
        ({"train.steps": 100}, 0.6, 1 / 4, "no lower than 0.250"),
        ({"train.epochs": 3.0}, 0.18, 1 / 4, "a budget in epochs counts candidates"),
        ({"train.steps": 100, "selection.policy": "steady"}, 0.18, 1 / 4, "no lower than 0.250 here"),
        ({"train.steps": 100, "selection.policy": "sb"}, 0.18, 1 / 3, ""),
    ],
)
def test_a_plan_knows_how_low_keep_auto_goes(
    budget: dict[str, object], effective: float | None, keep: float, says: str
) -> None:
    config = resolve(budget)
    fast = Costs(128, STEP_MS, score_us=1.0)
    assert forecasts(fast, config, effective)[0].keep == pytest.approx(keep)
    told = about_auto(config, effective)
    assert says in told if says else told == ""
