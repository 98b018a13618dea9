"""What a long run writes of its steps and leases: windows that hold exactly what the steps would."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from sbpipe.bench.long_run import LongRun, write_long_run
from sbpipe.config import resolve
from sbpipe.records import SelectorStats
from sbpipe.runs import read_run, thinning
from sbpipe.runs.density import Density
from sbpipe.runs.spans import Spans
from sbpipe.show.report.build import build_report
from sbpipe.trainer.record.usage import Usage
from sbpipe.trainer.serving.peers import Peer, Roster

NUM_STEPS = 700
SMALL = Density(dense=64, windows=16, singles=4)
ALL = Density(dense=1 << 20, windows=1 << 20, singles=0)
Event = dict[str, Any]


def events_of(run: Path, file: str = "events-trainer.jsonl") -> list[Event]:
    return [json.loads(line) for line in (run / file).read_text().splitlines()]


def of_kinds(events: list[Event], *kinds: str) -> list[Event]:
    return [event for event in events if event["kind"] in kinds]


def count_of(event: Event) -> int:
    return int(event.get("count", 1))


def stages_of(events: list[Event]) -> dict[str, float]:
    """Seconds of each stage over all events, whether written one by one or in all."""
    totals: defaultdict[str, float] = defaultdict(float)
    for event in events:
        for stage, numbers in (event.get("spans") or {}).items():
            totals[stage] += sum(numbers[1::2])
        for stage, (_, seconds) in (event.get("stages") or {}).items():
            totals[stage] += seconds
    return dict(totals)


@pytest.fixture
def both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[list[Event], list[Event]]:
    """The step events of a run that writes each one, and of the same run with windows."""
    found = []
    for name, density in (("each", ALL), ("windows", SMALL)):
        monkeypatch.setattr(thinning, "STEPS", density)
        found.append(of_kinds(events_of(write_long_run(tmp_path / name, NUM_STEPS)), "step", "steps"))
    return found[0], found[1]


def test_windows_hold_every_step_once(both: tuple[list[Event], list[Event]]) -> None:
    each, windows = both
    assert len(each) == NUM_STEPS
    assert len(windows) < NUM_STEPS / 3
    told = [k for event in windows for k in range(event.get("first", event["step"]), event["step"] + 1)]
    assert told == list(range(NUM_STEPS))
    assert [event["is_partial"] for event in of_kinds(windows, "steps")][-2:] == [False, True]


def test_sums_means_and_extremes_of_windows_are_those_of_their_steps(
    both: tuple[list[Event], list[Event]],
) -> None:
    each, windows = both
    checked = 0
    for window in of_kinds(windows, "steps"):
        steps = each[window["first"] : window["step"] + 1]
        selected = [1.0 - step["fill"] for step in steps]
        assert window["loss"] == pytest.approx(sum(step["loss"] for step in steps) / len(steps), abs=1e-6)
        assert window["loss_low"] == pytest.approx(min(step["loss"] for step in steps), abs=1e-6)
        assert window["loss_high"] == pytest.approx(max(step["loss"] for step in steps), abs=1e-6)
        assert window["staleness_max"] == max(step["staleness_max"] for step in steps)
        assert window["filled"] == round(sum(128 * step["fill"] for step in steps))
        assert window["candidates"] == steps[-1]["candidates"]
        for name in ("staleness_mean", "age_mean", "queue_mean"):
            total = sum(step[name] * share for step, share in zip(steps, selected, strict=True))
            assert window[name] == pytest.approx(total / sum(selected))
        for name in ("spearman", "score_error", "prediction_swing", "trust", "keep_probability"):
            assert window[name] == pytest.approx(sum(step[name] for step in steps) / len(steps))
        checked += 1
    assert checked > 50


def test_stages_of_windows_and_steps_together_are_all_of_the_runs_time(
    both: tuple[list[Event], list[Event]],
) -> None:
    each, windows = both
    assert stages_of(windows) == pytest.approx(stages_of(each))


def test_the_summary_does_not_depend_on_what_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summaries = []
    for name, density in (("each", ALL), ("windows", SMALL)):
        monkeypatch.setattr(thinning, "STEPS", density)
        summaries.append(read_run(write_long_run(tmp_path / name, NUM_STEPS)).summary)
    assert summaries[0] == summaries[1]
    assert summaries[0]["staleness.max"] == 3


@pytest.mark.parametrize(("messages_are_beside", "share"), [(True, 0.15), (False, 0.25)])
def test_selections_own_work_is_what_plain_training_has_not(messages_are_beside: bool, share: float) -> None:
    spans = Spans()
    own = {"weigh": 1.0, "steer": 2.0, "publish": 3.0, "publish_fast": 4.0, "log": 5.0}
    others = {"wait": 20.0, "forward": 30.0, "between": 5.0, "evaluate": 100.0, "dispatch": 10.0}
    for name, seconds in (own | others).items():
        spans.add(name, 0.0, seconds)
    usage = Usage(
        spans, Roster(lost_after_s=1.0, hung_after_s=1.0), lambda: (0.0, 200.0), messages_are_beside
    )
    assert usage.of_trainer()["trainer.selection_ratio"] == pytest.approx(share)


def test_a_selector_that_is_gone_counts_for_as_long_as_it_was_there() -> None:
    roster = Roster(lost_after_s=1.0, hung_after_s=1.0)
    usage = Usage(Spans(), roster, lambda: (100.0, 200.0), messages_are_beside=True)
    assert usage.selector_busy() == 0.0
    for name, came_at, busy_s in (("a", 90.0, 50.0), ("b", 100.0, 25.0)):
        peer = Peer(name, "cuda:1", is_ready=True, came_at=came_at)
        peer.stats = SelectorStats(score_s=busy_s)
        roster.add(peer)
    roster.hear("b", 150.0)
    roster.remove("b", is_lost=True)
    assert usage.selector_busy() == pytest.approx(0.5)
    roster.hear("a", 200.0)
    roster.remove("a", is_lost=True)
    assert usage.selector_busy() == pytest.approx(0.5)


@pytest.mark.parametrize("was_stopped", [True, False])
def test_a_window_that_a_checkpoint_cuts_goes_on_after_the_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, was_stopped: bool
) -> None:
    monkeypatch.setattr(thinning, "STEPS", SMALL)
    whole = write_long_run(tmp_path / "whole", NUM_STEPS)
    path = tmp_path / "resumed"
    path.mkdir()
    before = LongRun(path, resolve({}), NUM_STEPS)
    before.telemetry.begin()
    for step in range(309):
        before.take_step(step)
    before.telemetry.flush()
    state = before.telemetry.state()
    if was_stopped:
        before.telemetry.progress(None, now=True)
    else:  # killed later, and the steps after the checkpoint are lost
        for step in range(309, 400):
            before.take_step(step)
        before.telemetry.flush()
    before.close()
    after = LongRun(path, resolve({}), NUM_STEPS, first_step=309)
    after.resume(state, 309)
    after.write()
    for name in ("config.json", "environment.json"):
        (path / name).write_text("{}")
    assert [row[:3] for row in read_run(path).steps] == [row[:3] for row in read_run(whole).steps]
    losses = [row.loss for row in read_run(whole).steps]
    assert [row.loss for row in read_run(path).steps] == pytest.approx(losses)
    kept = of_kinds(events_of(path), "steps")
    cut = next(event for event in reversed(kept) if event["first"] < 309 <= event["step"])
    assert cut["stages"]["forward"] == pytest.approx([cut["count"], 0.02 * cut["count"]])


def test_leases_are_gathered_as_steps_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thinning, "STEPS", SMALL)
    path = write_long_run(tmp_path / "run", NUM_STEPS)
    (file,) = path.glob("events-selector-*.jsonl")
    told = of_kinds(events_of(path, file.name), "selection", "selections")
    num_told = sum(map(count_of, told))
    assert NUM_STEPS - 32 < num_told <= NUM_STEPS
    assert sum(event["kept"] for event in told) == 128 * num_told
    assert stages_of(told)["score"] == pytest.approx(0.03 * num_told)


def test_what_happens_now_can_be_watched_in_a_long_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thinning, "STEPS", SMALL)
    path = write_long_run(tmp_path / "run", NUM_STEPS)
    shown = [event["step"] for event in of_kinds(events_of(path, "recent-trainer.jsonl"), "last_step")]
    assert any(shown[k : k + 12] == list(range(shown[k], shown[k] + 12)) for k in range(len(shown)))
    assert shown[-1] > NUM_STEPS - 100


def test_a_long_run_makes_a_report_of_all_its_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thinning, "STEPS", SMALL)
    path = write_long_run(tmp_path / "run", NUM_STEPS)
    page = build_report([path], path / "report.html", figures=False).read_text()
    assert f"of {NUM_STEPS:,}: a stretch" in page
    assert "of the steps that were written one by one" in page
