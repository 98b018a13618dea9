"""How often weights go out and how far ahead is leased: decided from numbers, within bounds, and kept."""

import weakref
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.runs import events_of, small, train_over

from sbpipe.config import resolve
from sbpipe.machine import sync_needs
from sbpipe.machine.sync_needs import SyncCosts
from sbpipe.records import Part, SelectorStats
from sbpipe.runs.events import EventLog
from sbpipe.runs.spans import Spans
from sbpipe.trainer import pacing
from sbpipe.trainer.pacing import WINDOW, Pacer, SyncPace, agreed
from sbpipe.trainer.serving.peers import Peer, Roster


@dataclass
class Clock:
    """Time that goes by when it is told to."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("current", "needs", "need"),
    [
        (1, [5.0], 1),
        (1, [5.0, 0.4], 1),
        (1, [5.0, 3.0], 3.0),
        (8, [2.0, 3.0], 3.0),
        (8, [20.0, 3.0], 8),
    ],
)
def test_a_change_must_be_asked_for_twice_in_a_row(current: int, needs: list[float], need: float) -> None:
    assert agreed(current, needs) == need


def test_a_burst_of_others_on_the_machine_changes_nothing() -> None:
    pacer, pace = pacer_of(EventLog(None, "trainer"), sync__interval="auto", sync__depth="auto")
    quiet, burst = (
        SyncCosts(step_s=0.1, publish_s=0.0005),
        SyncCosts(step_s=0.1, publish_s=0.005, round_trip_s=0.3),
    )
    for costs in (quiet, burst, quiet, burst, quiet):
        pacer.decide(costs)
        assert (pace.interval, pace.depth) == (1, 2)


@pytest.mark.parametrize(("cpu_s", "interval"), [(0.0002, 1), (None, 50)])
def test_a_publish_that_waits_for_its_core_is_judged_by_its_processor_time(
    cpu_s: float | None, interval: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(pacing.time, "perf_counter", clock)
    spans, config = Spans(), small(mode="pipelined", sync__interval="auto")
    pace = SyncPace.of(config)
    roster = Roster(lost_after_s=4.0, hung_after_s=60.0)
    pacer = Pacer(config, pace, spans, roster, EventLog(None, "trainer"))
    for _ in range(2 * WINDOW + 1):
        clock.now += 0.1 + 0.05  # a step, and a publish that lost its core to somebody else
        spans.add("publish", 0.0, 0.05)
        if cpu_s is not None:
            pacer.published(cpu_s)
        pacer.step_done()
    assert pace.interval == interval


def pacer_of(events: EventLog, **given: object) -> tuple[Pacer, SyncPace]:
    config = resolve({key.replace("__", "."): value for key, value in given.items()})
    pace = SyncPace.of(config)
    return Pacer(config, pace, Spans(), Roster(lost_after_s=1.0, hung_after_s=1.0), events), pace


SLOW_WIRE = SyncCosts(step_s=0.01, transfer_s=0.2, round_trip_s=0.05)


def test_a_decision_is_an_event_with_its_reason(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events-trainer.jsonl", "trainer")
    pacer, pace = pacer_of(log, sync__interval="auto", sync__depth="auto")
    assert (pace.interval, pace.depth) == (1, 2)
    pacer.decide(SLOW_WIRE)
    pacer.decide(SLOW_WIRE)
    log.close()
    assert (pace.interval, pace.depth) == (20, 6)
    told = [(event["key"], event["old"], event["new"]) for event in events_of(tmp_path, "auto")]
    assert told == [("sync.interval", 1, 20), ("sync.depth", 2, 6)]
    assert "weights need 200 ms to arrive" in events_of(tmp_path, "auto")[0]["reason"]


def test_a_bound_on_staleness_holds_for_what_is_chosen() -> None:
    pacer, pace = pacer_of(
        EventLog(None, "trainer"), sync__interval="auto", sync__depth="auto", sync__max_staleness=5
    )
    pacer.decide(SLOW_WIRE)
    pacer.decide(SLOW_WIRE)
    assert pace.interval + pace.depth - 1 <= 5
    assert pace.interval > 1


@pytest.mark.parametrize("mode", ["lockstep", "fixed-lag", "inline"])
def test_under_a_clock_auto_is_one_and_two(mode: str) -> None:
    pacer, pace = pacer_of(EventLog(None, "trainer"), mode=mode, sync__interval="auto", sync__depth="auto")
    pacer.decide(SLOW_WIRE)
    assert (pace.interval, pace.depth, pace.intervals) == (1, 2, {Part.WHOLE: 1})


def test_a_number_that_was_given_stays() -> None:
    pacer, pace = pacer_of(EventLog(None, "trainer"), sync__interval=4, sync__depth=3)
    pacer.decide(SLOW_WIRE)
    assert (pace.interval, pace.depth) == (4, 3)


def test_the_fast_part_goes_apart_only_while_the_whole_goes_out_less_often() -> None:
    pace = SyncPace.of(resolve({"sync.interval": "auto"}))
    assert pace.intervals == {Part.WHOLE: 1}
    pace.interval = 8
    assert pace.intervals == {Part.WHOLE: 8, Part.FAST: 1}


def test_the_way_of_a_lease_is_measured_without_the_work_in_between() -> None:
    peer = Peer("a", "cpu")
    peer.begins(10.0)
    peer.answered(SelectorStats(score_s=0.5, tune_s=0.1), 11.0)
    peer.answered(SelectorStats(score_s=0.9), 12.0)  # it lay behind the first: its way is not known
    assert list(peer.round_trips) == pytest.approx([0.4])


def test_the_ways_of_leases_can_be_read_while_answers_come() -> None:
    peer = Peer("a", "cpu")

    def one_more(at: float) -> None:
        peer.begins(at)
        peer.answered(SelectorStats(), at + 0.1 * at)

    for at in range(20):
        one_more(float(at))
    read = iter(peer.round_trips)
    first = next(read)
    one_more(20.0)
    assert [first, *read] == pytest.approx([0.1 * at for at in range(4, 20)])
    assert list(peer.round_trips) == pytest.approx([0.1 * at for at in range(5, 21)])


def test_selectors_can_be_looked_through_while_one_leaves() -> None:
    roster = Roster(lost_after_s=1.0, hung_after_s=1.0)
    for name in "abc":
        roster.add(Peer(name, "cpu", is_ready=True))
    read = iter(roster.peers.values())
    first = next(read)
    roster.remove("b")
    assert [peer.name for peer in (first, *read)] == ["a", "b", "c"]
    assert list(roster.peers) == ["a", "c"]


def test_of_a_selector_that_is_gone_only_what_totals_need_is_kept() -> None:
    roster, peer = Roster(lost_after_s=1.0, hung_after_s=1.0), Peer("a", "cuda:1", is_ready=True)
    gone = weakref.ref(peer)
    roster.add(peer)
    peer.answered(SelectorStats(precision="fp16", scored=7, apply_ms=2.0), 1.0)
    roster.remove("a")
    del peer
    assert gone() is None
    assert roster.total(lambda stats: stats.scored) == 7
    assert roster.mean(lambda stats: stats.apply_ms) == 2.0
    assert [former.description for former in roster.gone] == ["cuda:1 fp16"]


def test_a_run_publishes_less_often_from_the_decision_on(
    run_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync_needs, "PUBLISH_SHARE", 1e-9)  # whatever a publish takes, it is too much
    config = small(sync__interval="auto", train__steps=3 * WINDOW, sync__max_staleness=9)
    summary = train_over(config, run_path)
    (event,) = events_of(run_path, "auto")
    assert (event["key"], event["old"], event["new"]) == ("sync.interval", 1, 8)
    assert WINDOW < summary["sync.published"] < 3 * WINDOW
    assert summary["sync.fast_published"] > 0
    assert summary["staleness.max"] <= 9


def test_a_resumed_run_goes_on_at_the_pace_it_had() -> None:
    pacer, pace = pacer_of(EventLog(None, "trainer"), sync__interval="auto", sync__depth=3)
    pacer.restore({"interval": 8, "depth": 5})
    assert (pace.interval, pace.depth) == (8, 3)
    pacer.restore({})  # a checkpoint from before there was a pace
    assert pace.interval == 8
