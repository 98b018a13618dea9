"""Each fault that real accelerators let pass in silence is planted here, and caught."""

import inspect
import multiprocessing
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch

import simulated

SLOW_S = 0.02
"""Of a kernel whose end must not be there before the host looks."""


def line_of(function: Callable[..., object], text: str) -> str:
    """Where in this file a function says something."""
    lines, first = inspect.getsourcelines(function)
    (at,) = [first + k for k, line in enumerate(lines) if text in line]
    return f"tests/simulated/{__file__.rpartition('/')[2]}:{at}"


TOUCH = """
import ctypes, torch
tensor = torch.ones(4, device="sim:1")
ctypes.string_at(tensor.data_ptr(), 4)
"""


def test_the_host_that_touches_memory_of_a_device_dies_and_is_told_where() -> None:
    done = subprocess.run([sys.executable, "-c", TOUCH], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGSEGV
    assert "the host touched memory of sim:1" in done.stderr
    assert 'File "<string>", line 4' in done.stderr


def test_a_late_copy_holds_poison_until_it_is_waited_for() -> None:
    source, target = torch.arange(5.0, device="sim:0"), torch.zeros(5, pin_memory=True)
    target.copy_(source, non_blocking=True)
    copied = torch.accelerator.current_stream(0).record_event()
    assert target.isnan().all()
    copied.synchronize()
    assert target.tolist() == [0, 1, 2, 3, 4]


def test_a_late_copy_brings_what_the_source_held_when_it_was_queued() -> None:
    source, target = torch.zeros(5, device="sim:0"), torch.zeros(5, pin_memory=True)
    target.copy_(source, non_blocking=True)
    source.add_(1)
    torch.accelerator.synchronize(0)
    assert target.tolist() == [0] * 5


def test_a_pinned_buffer_that_is_overwritten_in_flight_spoils_the_copy() -> None:
    buffer = torch.arange(6).pin_memory()
    moved = buffer.to("sim:0", non_blocking=True)
    buffer.zero_()
    torch.accelerator.synchronize(0)
    (found,) = simulated.races()
    assert found.kind == "overwritten in flight"
    assert moved.tolist() != list(range(6))


def test_a_pinned_buffer_that_is_overwritten_after_the_copy_spoils_nothing() -> None:
    buffer = torch.arange(6).pin_memory()
    moved = buffer.to("sim:0", non_blocking=True)
    torch.accelerator.current_stream(0).record_event().synchronize()
    buffer.zero_()
    torch.accelerator.synchronize(0)
    assert moved.tolist() == list(range(6))
    assert simulated.races() == []


def test_a_pinned_buffer_that_is_dropped_in_flight_is_not_handed_out_again() -> None:
    simulated.set_copies(latency_s=SLOW_S)
    moved = [torch.full((64,), k).pin_memory().to("sim:0", non_blocking=True) for k in range(20)]
    torch.accelerator.synchronize(0)
    assert [int(one[0]) for one in moved] == list(range(20))
    assert simulated.races() == []


def on_two_streams(is_ordered: bool) -> None:
    shared, side = torch.zeros(8, device="sim:0"), torch.Stream("sim:0")
    shared.add_(1)
    if is_ordered:
        side.wait_event(torch.accelerator.current_stream(0).record_event())
    with side:
        shared.mul_(2)


def test_two_streams_that_race_are_reported_with_both_lines() -> None:
    on_two_streams(is_ordered=False)
    (found,) = [race for race in simulated.races() if "add_" in race.first]
    assert line_of(on_two_streams, "shared.add_(1)") in found.first
    assert line_of(on_two_streams, "shared.mul_(2)") in found.second


def test_two_streams_with_an_event_between_them_do_not_race() -> None:
    on_two_streams(is_ordered=True)
    assert simulated.races() == []


def test_reading_on_one_stream_what_another_overwrites_is_a_race_too() -> None:
    shared, side = torch.zeros(8, device="sim:0"), torch.Stream("sim:0")
    side.wait_event(torch.accelerator.current_stream(0).record_event())
    with side:
        shared.sum()
    shared.add_(1)
    assert [(race.kind, "sum" in race.first, "add_" in race.second) for race in simulated.races()] == [
        ("race", True, True)
    ]


def freed_while_in_use(is_recorded: bool) -> None:
    side = torch.Stream("sim:0")
    tensor = torch.zeros(1000, device="sim:0")
    side.wait_event(torch.accelerator.current_stream(0).record_event())
    with side:
        tensor.sum()
    if is_recorded:
        tensor.record_stream(side)
    del tensor
    torch.zeros(1000, device="sim:0")


def test_memory_that_is_freed_while_another_stream_reads_it_and_reused_is_reported() -> None:
    freed_while_in_use(is_recorded=False)
    assert [race.kind for race in simulated.races()] == ["reused memory"]


def test_record_stream_keeps_such_memory_from_being_reused() -> None:
    simulated.set_kernel_s(0, SLOW_S)
    freed_while_in_use(is_recorded=True)
    assert simulated.races() == []


def publish(weights: torch.Tensor, *, waits: bool) -> torch.Tensor:
    """From the device over a side stream and pinned memory into a slot, as the publisher goes."""
    side, pinned = torch.Stream("sim:0"), torch.zeros(len(weights), pin_memory=True)
    side.wait_event(torch.accelerator.current_stream(0).record_event())
    with side:
        pinned.copy_(weights, non_blocking=True)
        done = side.record_event()
    if waits:
        done.synchronize()
    return pinned.clone()


def test_a_slot_filled_before_the_copy_is_there_is_torn() -> None:
    weights = torch.full((100,), 7.0, device="sim:0")
    assert publish(weights, waits=False).isnan().all()
    assert publish(weights, waits=True).eq(7).all()


def test_weights_that_move_while_a_side_stream_copies_them_are_reported() -> None:
    weights = torch.zeros(100, device="sim:0")
    publish(weights, waits=False)
    weights.add_(1)
    (found,) = simulated.races()
    assert ("copy to the host" in found.first, "add_" in found.second) == (True, True)


def hidden_item(tensor: torch.Tensor) -> float:
    return sum(float(tensor[k]) for k in range(5))


def test_a_hidden_item_is_counted_at_its_line() -> None:
    hidden_item(torch.zeros(5, device="sim:0"))
    (found,) = simulated.waits()
    assert (found.where, found.kind, found.count) == (line_of(hidden_item, "float(tensor[k])"), "item", 5)
    assert (found.thread, found.drains) == ("MainThread", 5)


def test_a_wait_for_this_step_is_told_from_one_for_the_step_before_though_neither_drains() -> None:
    tensor = torch.zeros(5, device="sim:0")
    stream = torch.accelerator.current_stream(0)

    def step() -> torch.Event:
        tensor.add_(1)
        losses = stream.record_event()
        tensor.add_(1)  # as a publish
        return losses

    before = step()
    simulated.mark()
    now = step()
    found = []
    for event in (before, now):
        event.synchronize()
        (wait,) = simulated.waits()
        found.append((wait.count, wait.drains, wait.newer))
    assert found == [(1, 0, 0), (2, 0, 1)]


def test_what_another_stream_waited_for_counts_as_waited_for() -> None:
    tensor, side = torch.zeros(5, device="sim:0"), torch.Stream("sim:0")
    simulated.mark()
    tensor.add_(1)
    side.wait_event(torch.accelerator.current_stream(0).record_event())
    side.record_event().synchronize()
    assert [wait.newer for wait in simulated.waits()] == [1]


@pytest.mark.parametrize(
    ("does", "kind"),
    [
        (lambda tensor: tensor.cpu(), "copy"),
        (lambda tensor: tensor.tolist(), "copy"),
        (lambda tensor: tensor.copy_(torch.ones(4)), "copy"),
        (lambda tensor: tensor.copy_(torch.ones(4), non_blocking=True), "copy"),
        (lambda tensor: torch.tensor([1.0], device="sim:0"), "copy"),
        (lambda tensor: bool(tensor[0] > 0), "item"),
        (lambda tensor: tensor.nonzero(), "shape"),
        (lambda tensor: tensor[tensor > 0], "shape"),
        (lambda tensor: tensor[torch.tensor([1, 2])], "copy"),
        (lambda tensor: torch.equal(tensor, tensor), "shape"),
    ],
)
def test_what_waits_without_saying_so_is_counted(does: Callable[[torch.Tensor], object], kind: str) -> None:
    tensor = torch.zeros(4, device="sim:0")
    simulated.reset()
    does(tensor)
    assert [wait.kind for wait in simulated.waits()] == [kind]


@pytest.mark.parametrize(
    "does",
    [
        lambda tensor: tensor.add_(1).mul(2).sum(),
        lambda tensor: tensor.to("cpu", non_blocking=True) if tensor.numel() == 0 else tensor.clone(),
        lambda tensor: torch.zeros(4, device="sim:0").copy_(torch.ones(4).pin_memory(), non_blocking=True),
        lambda tensor: tensor[1:3].view(2, 1).expand(2, 3).contiguous(),
        lambda tensor: tensor * torch.tensor(2.0),
        lambda tensor: torch.accelerator.current_stream(0).record_event().query(),
    ],
)
def test_what_does_not_wait_is_not_counted(does: Callable[[torch.Tensor], object]) -> None:
    tensor = torch.zeros(4, device="sim:0")
    simulated.reset()
    does(tensor)
    assert simulated.waits() == []


@pytest.mark.parametrize("other", ["cpu", "sim:1"])
def test_an_operation_on_two_devices_is_refused(other: str) -> None:
    with pytest.raises(RuntimeError, match=f"found at least two devices, sim:0 and {other}"):
        torch.ones(3, device="sim:0") + torch.ones(3, device=other)


def use_a_device(told: multiprocessing.Queue) -> None:
    try:
        torch.ones(3, device="sim:0")
    except RuntimeError as error:
        told.put(str(error))


def test_a_forked_process_must_not_use_a_device_that_its_parent_used() -> None:
    torch.ones(3, device="sim:0")
    context = multiprocessing.get_context("fork")
    told = context.Queue()
    child = context.Process(target=use_a_device, args=(told,))
    child.start()
    assert "Cannot re-initialize sim in forked subprocess" in told.get(timeout=60)
    child.join()
