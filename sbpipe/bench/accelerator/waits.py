"""How often the host waits for the device, by the profiler's names and by the lines that do it."""

import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

import sbpipe
from sbpipe.bench.accelerator.check import Fact, NotHere, Size, attempt
from sbpipe.bench.accelerator.loop import steps_on
from sbpipe.bench.accelerator.stage import first, set_stage

_WAITS = re.compile(r"synchronize|^aten::(_local_scalar_dense|nonzero|unique|masked_select)", re.IGNORECASE)
_PACKAGE = Path(sbpipe.__file__).parent
_WARM_UPS = 3


def measure(size: Size) -> Sequence[Fact]:
    """Of a step of the loop, with its losses, weights and publish, and of a scoring pass with what a selector
    asks of it.
    """
    stage = set_stage(size, first())
    scorer = stage.scorer()
    examine = partial(scorer.examine, stage.inputs, stage.targets)
    with steps_on(size, stage.device) as steps:
        for _ in range(_WARM_UPS):
            steps.take()
        facts = _of("step of the loop", steps.take, size, stage.device)
    return [*facts, *_of("scoring pass", examine, size, stage.device)]


def _of(what: str, call: Callable[[], Any], size: Size, device: torch.device) -> list[Fact]:
    return [
        *attempt(what, partial(_by_name, what, call, size.rounds, device)),
        *attempt(f"{what}, by line", partial(_by_line, what, call, size.rounds, device)),
    ]


def _by_name(what: str, call: Callable[[], Any], rounds: int, device: torch.device) -> Iterator[Fact]:
    """Calls of the device's library, and of torch, that wait, in every thread: a publish's own waits once."""
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    call()
    torch.accelerator.synchronize(device)
    with profile(activities=activities) as profiler:
        for _ in range(rounds):
            call()
    found = {event.key: event.count for event in profiler.key_averages() if _WAITS.search(event.key)}
    yield Fact(f"{what}, waits", sum(found.values()) / rounds, "per call", _seen_by(device))
    for name in sorted(found):
        yield Fact(f"{what}, {name}", found[name] / rounds, "per call")


def _seen_by(device: torch.device) -> str:
    return (
        "" if device.type == "cuda" else f"of torch alone: the profiler does not see what {device.type} calls"
    )


def _by_line(what: str, call: Callable[[], Any], rounds: int, device: torch.device) -> Iterator[Fact]:
    """The lines at which torch itself says that the host waits."""
    if device.type != "cuda":
        raise NotHere(f"torch names such lines on CUDA only, this is {device.type}")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            for _ in range(rounds):
                call()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    lines = Counter(_line(item) for item in caught if "synchroniz" in str(item.message))
    yield Fact(f"{what}, lines that wait", float(len(lines)))
    for line, count in sorted(lines.items()):
        yield Fact(f"{what}, {line}", count / rounds, "per call")


def _line(item: warnings.WarningMessage) -> str:
    """A line of ours by its place in the package; of others by the name of its file alone."""
    path = Path(item.filename)
    place = path.relative_to(_PACKAGE) if path.is_relative_to(_PACKAGE) else Path(path.name)
    return f"{place} line {item.lineno}"
