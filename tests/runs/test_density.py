"""How much of a long run is written: each step in one event, ever fewer events, storms counted."""

import json
from pathlib import Path

import pytest

from sbpipe.runs import events as events_module
from sbpipe.runs.density import STEPS, Density, interval_s
from sbpipe.runs.events import EventLog
from sbpipe.runs.storm import ALWAYS, EVERY_S, StormGate

SMALL = Density(dense=64, windows=16, singles=4)


def lines_of(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_first_steps_and_those_after_each_doubling_are_written_alone() -> None:
    assert all(STEPS.window_of(step) == 1 for step in range(STEPS.dense + STEPS.singles))
    assert STEPS.window_of(STEPS.dense + STEPS.singles) == 4
    assert STEPS.window_of(2 * STEPS.dense + STEPS.singles - 1) == 1
    assert STEPS.window_of(2 * STEPS.dense + STEPS.singles) == 8


@pytest.mark.parametrize("density", [SMALL, Density(512, 128, 0), Density(8, 8, 2)])
def test_windows_are_whole_between_two_doublings(density: Density) -> None:
    ends = [step for step in range(4096) if density.ends_window(step)]
    lengths = [after - before for before, after in zip([-1, *ends], ends, strict=False)]
    assert sum(lengths) == 4096
    assert all(length <= density.window_of(end) for length, end in zip(lengths, ends, strict=True))


def test_ten_million_steps_are_thirty_thousand_events() -> None:
    count, step = 0, 0
    while step < 10**7:
        step += STEPS.window_of(step)
        count += 1
    assert count < 32_000


def test_what_comes_by_the_clock_comes_ever_less_often() -> None:
    assert interval_s(10.0, 0.5) == 0.5
    assert [interval_s(1024.0 * 2**k, 0.5) for k in range(4)] == [1.0, 2.0, 4.0, 8.0]


def test_every_event_of_a_storm_is_written_or_counted() -> None:
    gate = StormGate()
    told = [gate.admit("fenced", 0.01 * k) for k in range(3 * ALWAYS)]
    is_let, left_out = gate.admit("fenced", 0.03 * ALWAYS + EVERY_S)
    assert sum(is_written for is_written, _ in told) == ALWAYS
    assert (is_let, left_out) == (True, 2 * ALWAYS)
    assert gate.admit("eval", 0.0) == (True, 0)


def test_a_storm_that_ends_with_the_run_is_counted_too(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events-trainer.jsonl", "trainer", clock=lambda: 1.0)
    for lease in range(ALWAYS + 5):
        log.write("fenced", selector="a", lease=lease, reason="late")
    log.close()
    written = lines_of(tmp_path / "events-trainer.jsonl")
    assert len(written) == ALWAYS + 1
    assert (written[-1]["kind"], written[-1]["of"], written[-1]["count"]) == ("left_out", "fenced", 5)


def test_what_only_matters_now_stays_small_and_goes_with_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events_module, "RECENT_BYTES", 1000)
    recent = tmp_path / "recent-trainer.jsonl"
    log = EventLog(tmp_path / "events-trainer.jsonl", "trainer")
    assert not recent.exists()
    for step in range(100):
        log.write_recent("last_step", step=step, spans={})
    assert lines_of(recent)[-1]["step"] == 99
    assert recent.stat().st_size < 1200
    log.close()
    EventLog(tmp_path / "events-trainer.jsonl", "trainer").close()
    assert not recent.exists()


def test_a_line_that_a_kill_has_cut_does_not_spoil_the_next(tmp_path: Path) -> None:
    path = tmp_path / "events-trainer.jsonl"
    path.write_text('{"kind":"step","st')
    log = EventLog(path, "trainer")
    log.write("resumed", step=3)
    log.close()
    assert json.loads(path.read_text().splitlines()[1])["kind"] == "resumed"


def test_a_number_that_is_not_finite_is_null(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events-trainer.jsonl", "trainer")
    log.write("eval", error=float("nan"), class_errors=[0.5, float("inf")])
    log.close()
    (written,) = lines_of(tmp_path / "events-trainer.jsonl")
    assert (written["error"], written["class_errors"]) == (None, [0.5, None])
