"""How much of the wall clock the device computes: by its own events, the host's clock, and as a run tells."""

import time
from collections.abc import Sequence

import torch

from sbpipe.bench.accelerator.check import Fact, Size
from sbpipe.bench.accelerator.loop import told_by_a_run
from sbpipe.bench.accelerator.stage import first, set_stage

_TOLD = {
    "trainer.busy_ratio": "busy",
    "trainer.gap_ratio": "gaps between kernels",
    "trainer.launch_ratio": "stages that end as soon as they are launched",
    "trainer.idle_ratio": "waiting for a batch",
}
"""Of a run's summary, what its spans and gaps say."""


def measure(size: Size) -> Sequence[Fact]:
    """Bare train steps back to back, and a run whose batches are filled."""
    told = told_by_a_run(size, first())
    note = "of the loop's time; the device is held back before a few steps, where it can be"
    return [
        *_bare(size),
        *(Fact(f"as a run tells, {words}", told[name], note=note) for name, words in _TOLD.items()),
    ]


def _bare(size: Size) -> Sequence[Fact]:
    """Train steps on one batch that is there already."""
    stage = set_stage(size, first())
    inputs, targets = stage.batch(0)
    stage.setup.train_step(0, 0.5, inputs, targets)
    torch.accelerator.synchronize(stage.device)
    pairs, host_s = [], 0.0
    begin = time.perf_counter()
    for step in range(size.rounds):
        events = [torch.Event(stage.device, enable_timing=True) for _ in range(2)]
        called = time.perf_counter()
        events[0].record()
        stage.setup.train_step(step, 0.5, inputs, targets)
        events[1].record()
        host_s += time.perf_counter() - called
        pairs.append(events)
    torch.accelerator.synchronize(stage.device)
    wall_s = time.perf_counter() - begin
    device_s = sum(one.elapsed_time(other) for one, other in pairs) / 1e3
    return [
        Fact("train step, wall clock", 1e3 * wall_s / size.rounds, "ms"),
        Fact("train step, by the device's events", 1e3 * device_s / size.rounds, "ms"),
        Fact("train step, until the host goes on", 1e3 * host_s / size.rounds, "ms"),
        Fact("by events, of the wall clock", device_s / wall_s),
        Fact("by the host's calls, of the wall clock", host_s / wall_s),
    ]
