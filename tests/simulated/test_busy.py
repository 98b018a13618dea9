"""Busy and idle are the device's, not the host's: stages are timed by events, and nobody waits for them."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.busy import Devices, compare, first_batch
from support.runs import events_of, small, train_inline

import simulated
from sbpipe.machine import gaps
from sbpipe.machine.device_spans import DeviceSpans, Plan, spans_on
from sbpipe.process import roles
from sbpipe.runs.spans import Spans

DEVICE = torch.device("sim", 0)
KERNEL_S = 0.1
WORK = ("forward", "backward")
PLAN = Plan(timed=("wait", "forward", "backward"), waiting=("wait",), worked="augment", side=("view",))
LOOKING = PLAN._replace(timed=(*PLAN.timed, "log", "evaluate"), left_out=("evaluate",), is_looked_into=True)


def spans_behind(num_kernels: int, plan: Plan = PLAN) -> tuple[DeviceSpans, torch.Tensor]:
    """Spans of a device that has work for so many kernels before it comes to what is queued next."""
    simulated.set_kernel_s(0, KERNEL_S)
    values = torch.empty(4, device=DEVICE)
    for _ in range(num_kernels):
        values.zero_()
    return DeviceSpans(DEVICE, plan), values


class Silent(torch.Stream):
    """As Apple's: it does not say whether it has anything left to do."""

    def query(self) -> bool:
        raise RuntimeError("Backend doesn't support querying streams.")


def test_a_device_whose_streams_cannot_be_asked_is_timed_by_the_host_and_a_note_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    silent = Silent(DEVICE)
    monkeypatch.setattr(torch.accelerator, "current_stream", lambda device=None: silent)
    spans, note = spans_on(DEVICE, PLAN)
    assert type(spans) is Spans
    assert "Backend doesn't support querying streams" in note


def test_a_stage_lasts_as_long_as_the_device_takes_for_it_and_nobody_waits_for_that() -> None:
    spans, values = spans_behind(8)
    for _ in range(2):
        with spans.span("forward"):
            values.add_(1)
            values.add_(1)
        with spans.span("backward"):
            values.add_(1)
    assert spans.totals() == {}, "the device has not come so far"
    assert simulated.waits() == []
    spans.settle()
    totals = spans.totals()
    assert totals["forward"] == [2, pytest.approx(4 * KERNEL_S, rel=1e-3)]
    assert totals["backward"] == [2, pytest.approx(2 * KERNEL_S, rel=1e-3)]
    recent = spans.take_recent()
    assert recent["forward"][0] + recent["forward"][1] == pytest.approx(recent["backward"][0], abs=1e-2)


def test_a_stage_that_the_device_does_as_fast_as_it_is_launched_is_told_apart() -> None:
    spans, values = spans_behind(8)
    with spans.span("forward"):
        values.add_(1)
    spans.settle()
    assert spans.drained_s == {}, "the device was behind the host"
    with spans.span("forward"):
        torch.accelerator.synchronize(0)
    assert spans.drained_s["forward"] > 0.0


def rounds(spans: DeviceSpans, values: torch.Tensor, count: int, at_end: Callable[[], object] = bool) -> None:
    """A loop whose host is slower than its device everywhere: inside stages, between them, in others."""
    for _ in range(count):
        with spans.span("wait"):
            pass
        with spans.span("forward"):
            for _ in range(2):
                values.add_(1)
                be_slow()
        values.add_(1)  # in no stage: between two
        be_slow()
        with spans.span("log"):
            values.add_(1)
            be_slow()
        with spans.span("backward"):
            values.add_(1)
            at_end()
    with spans.span("wait"):
        pass


def be_slow() -> None:
    launched = time.perf_counter()
    while time.perf_counter() < launched + 0.03:
        pass


def spans_that_look(monkeypatch: pytest.MonkeyPatch) -> tuple[DeviceSpans, torch.Tensor]:
    """Of a device that is held back for so long that no other work of the machine can make it too short."""
    monkeypatch.setattr(gaps, "_HOLD", 12.0)
    simulated.set_kernel_s(0, 0.01)
    spans = DeviceSpans(DEVICE, LOOKING)
    spans.clear()
    return spans, torch.empty(4, device=DEVICE)


def test_gaps_of_whole_rounds_are_found_out_by_holding_the_device_back_and_nobody_waits_for_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spans, values = spans_that_look(monkeypatch)
    simulated.reset()
    rounds(spans, values, 8)
    assert simulated.waits() == []
    spans.settle()
    assert spans.worked_s(WORK) == pytest.approx(simulated.busy_s(0), rel=1e-3) == 8 * 5 * 0.01
    assert spans.gap_s() > 3 * 4 * 0.02, "of the rounds before the first look"


def test_what_another_thread_gives_the_device_meanwhile_is_work_of_a_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spans, values = spans_that_look(monkeypatch)

    def view() -> None:
        with spans.span("view"):
            values.add_(1)

    def beside() -> None:
        thread = threading.Thread(target=view)
        thread.start()
        thread.join()

    rounds(spans, values, 8, at_end=beside)
    spans.settle()
    assert spans.worked_s(WORK) == pytest.approx(simulated.busy_s(0), rel=1e-3) == 8 * 6 * 0.01


def test_a_round_in_which_the_host_waits_for_the_device_shows_no_gaps_and_is_seldom_looked_into(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spans, values = spans_that_look(monkeypatch)
    held = []
    monkeypatch.setattr(spans._gaps, "_hold", lambda seconds: held.append(seconds) or True)
    rounds(spans, values, 12, at_end=lambda: torch.accelerator.synchronize(0))
    spans.settle()
    assert len(held) == 2, "a second try, and then none for as many rounds again and more"
    assert spans.gap_s() == 0.0
    assert spans.worked_error_s() > spans.worked_s(WORK), "any of it may have been gaps"
    assert spans.worked_s(WORK) == pytest.approx(sum(spans.total_s[name] for name in WORK))


def test_an_evaluation_is_no_part_of_a_round() -> None:
    spans, values = spans_behind(2, LOOKING)
    spans.clear()
    for _ in range(4):
        with spans.span("wait"):
            pass
        with spans.span("forward"):
            values.add_(1)
        with spans.span("evaluate"):
            values.add_(1)
    with spans.span("wait"):
        pass
    spans.settle()
    assert spans.worked_s(WORK) == pytest.approx(4 * KERNEL_S, rel=1e-3)


def test_a_device_that_is_behind_its_host_is_never_held_back(monkeypatch: pytest.MonkeyPatch) -> None:
    spans, values = spans_behind(8, LOOKING)
    spans.clear()
    held = list[float]()
    monkeypatch.setattr(spans._gaps, "_hold", lambda seconds: bool(held.append(seconds)))
    for _ in range(12):
        with spans.span("wait"):
            pass
        with spans.span("forward"):
            values.add_(1)
    spans.settle()
    assert spans.total_s["forward"] == pytest.approx(12 * KERNEL_S, rel=1e-3)
    assert spans.worked_s(WORK) == pytest.approx(12 * KERNEL_S, rel=1e-3)
    assert spans.gap_s() == 0.0
    assert held == []


def evaluated(spans: DeviceSpans, values: torch.Tensor) -> None:
    """As our loop does it: what is out is waited for, the host reads the result and goes on."""
    with spans.aside("wait"):
        pass
    with spans.span("evaluate"):
        values.add_(1)
        be_slow()
        torch.accelerator.synchronize(0)
    with spans.span("log"):
        pass


def test_an_evaluation_never_makes_a_device_sleep_that_sets_the_pace() -> None:
    spans, values = spans_behind(8, LOOKING)
    spans.clear()
    for number in range(12):
        with spans.span("wait"):
            pass
        with spans.span("forward"):
            for _ in range(2):
                values.add_(1)
        if number in (5, 8):
            evaluated(spans, values)
    spans.settle()
    assert simulated.slept_s(0) == 0.0
    assert spans.worked_s(WORK) == pytest.approx(24 * KERNEL_S, rel=1e-3)


def test_the_time_of_an_evaluation_is_not_taken_for_launching_and_no_round_begins_in_the_middle_of_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gaps, "_LONGEST", 1)  # a look before every round from the fourth on
    spans, values = spans_that_look(monkeypatch)
    held = list[float]()
    monkeypatch.setattr(spans._gaps, "_hold", lambda seconds: bool(held.append(seconds)))
    rounds(spans, values, 6)
    spans.settle()
    launchings, num_held = list(spans._gaps._launchings), len(held)
    evaluated(spans, values)
    with spans.span("wait"):
        pass
    spans.settle()
    assert len(launchings) == 6
    assert list(spans._gaps._launchings) == launchings
    assert len(held) == num_held + 1, "one for the round that the last wait began"


def test_a_loop_that_waits_while_the_device_works_leaves_it_idle_for_no_time() -> None:
    spans, values = spans_behind(8)
    with spans.span("wait"):
        spans.add("wait_view", time.perf_counter(), 5.0)
    with spans.span("forward"):
        values.add_(1)
    spans.settle()
    assert spans.total_s["wait"] == pytest.approx(0.0, abs=1e-3)
    assert spans.total_s["wait_view"] == pytest.approx(0.0, abs=1e-3), "nor for any part of it"


def test_a_device_without_work_is_idle_until_the_loop_has_some() -> None:
    spans, _ = spans_behind(0)
    torch.accelerator.synchronize(0)
    begin = time.perf_counter()
    with spans.span("wait"):
        waited = time.perf_counter()
        while time.perf_counter() < waited + 0.05:
            pass
    spans.settle()
    assert 0.05 <= spans.total_s["wait"] <= time.perf_counter() - begin


def test_what_a_side_thread_computes_there_meanwhile_is_work_and_not_waiting() -> None:
    spans, values = spans_behind(8)
    with spans.span("wait"), spans.span("view"):
        values.add_(1)
    spans.settle()
    assert spans.total_s["wait"] == pytest.approx(0.0, abs=1e-3)
    assert spans.total_s["augment"] == pytest.approx(KERNEL_S, rel=1e-3)


def test_pieces_of_a_stage_count_as_one_span_of_the_time_they_took() -> None:
    spans, values = spans_behind(8)
    with spans.gathered() as pieces:
        for _ in range(2):
            with pieces.span("forward"):
                values.add_(1)
            with pieces.span("backward"):
                values.add_(1)
    spans.settle()
    assert spans.totals()["forward"] == [1, pytest.approx(2 * KERNEL_S, rel=1e-3)]


def test_what_was_queued_before_a_count_began_is_not_in_it() -> None:
    spans, values = spans_behind(2)
    with spans.span("forward"):
        values.add_(1)
    spans.clear()
    spans.settle()
    assert spans.totals() == {}


def test_the_busy_share_of_a_run_is_that_of_its_device(run_path: Path) -> None:
    simulated.trace(False)
    simulated.set_kernel_s(0, 4e-3)  # of which the host launches several meanwhile, on a busy machine too
    config = small(mode="inline", train__device="sim:0", selection__policy="random", train__steps=8)
    truth: list[tuple[float, float]] = []

    def doing(what: str) -> None:
        if what == "training":
            truth.append((simulated.busy_s(0), simulated.elapsed_s(0)))

    with first_batch() as began:
        summary = roles.run_inline(
            config, run_path, resume=False, overwrite=False, on_open=lambda run_dir: None, doing=doing
        )
    (busy_before, before), (busy_after, after) = began[0], truth[-1]
    busy = min(1.0, (busy_after - busy_before) / (after - before))
    assert summary["trainer.busy_ratio"] == pytest.approx(busy, abs=0.05)
    assert summary["trainer.idle_ratio"] == pytest.approx(1.0 - busy, abs=0.05)


@pytest.mark.parametrize("slowness", [1.0, 3.0])
def test_busy_is_the_truth_however_much_slower_than_its_host_a_device_is(
    slowness: float, tmp_path: Path
) -> None:
    simulated.trace(False)
    row = compare(Devices(slowness), 24, tmp_path, train__batch_size=16)
    assert row.said == pytest.approx(row.truth, rel=0.05)


def test_a_selector_counts_what_its_device_did_for_its_answers_and_not_its_launching(tmp_path: Path) -> None:
    simulated.trace(False)
    # Kernels so long that a stage timed by the host, which only launches them, would lack most of its time.
    row = compare(Devices(kernel_s=4e-3), 8, tmp_path, model__name="small_cnn", train__batch_size=16)
    # The host times `apply`: a copy of each kind of tensor, for each version of the weights.
    assert row.answering_said_s > 0.9 * row.answering_s


def test_a_run_too_short_to_look_into_says_that_busy_is_not_known(run_path: Path) -> None:
    simulated.trace(False)
    summary = train_inline(small(mode="inline", train__device="sim:0", train__steps=3), run_path)
    assert summary["trainer.busy_error"] > 0.1
    notes = [event["text"] for event in events_of(run_path, "note")]
    assert [note for note in notes if "that may be off by" in note] != []
