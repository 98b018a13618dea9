"""What publishing costs the loop, when a snapshot is there, and what applying it costs a selector."""

import copy
import statistics
import threading
import time
from collections.abc import Sequence

import torch

from sbpipe.bench.accelerator.check import Fact, Size
from sbpipe.bench.accelerator.stage import first, set_stage
from sbpipe.runs.spans import Spans
from sbpipe.weights.publisher import PartPublisher
from sbpipe.weights.replica import Replica, SlotSource
from sbpipe.weights.slots import Slots

_PATIENCE_S = 30.0


def measure(size: Size) -> Sequence[Fact]:
    """Medians of some snapshots of a model on the device, one after the other."""
    stage = set_stage(size, first())
    model, manifest = stage.setup.train_step.model, stage.setup.manifest
    slots = Slots.create(manifest.num_bytes)
    is_there = threading.Event()
    publisher = PartPublisher(model, manifest, slots, Spans(), lambda part, version, is_late: is_there.set())
    replica, source = Replica(copy.deepcopy(model), manifest), SlotSource(slots)
    held, there, applied = [], [], []
    try:
        for version in range(1, size.rounds + 3):
            torch.accelerator.synchronize(stage.device)
            is_there.clear()
            begin = time.perf_counter()
            # Skipped while the last one, which is there already, is still being tidied up.
            while not publisher.publish(version):
                begin = time.perf_counter()
            held.append(time.perf_counter() - begin)
            if not is_there.wait(_PATIENCE_S):
                raise RuntimeError(f"a snapshot did not arrive in {_PATIENCE_S:.0f} s")
            there.append(time.perf_counter() - begin)
            begin = time.perf_counter()
            source.refresh(replica, version, exact=True, deadline_s=_PATIENCE_S)
            torch.accelerator.synchronize(stage.device)
            applied.append(time.perf_counter() - begin)
    finally:
        publisher.close()
        slots.close()
    return [
        Fact("snapshot", manifest.num_bytes / 1e6, "MB"),
        Fact("the loop is held by a publish", 1e3 * statistics.median(held[2:]), "ms"),
        Fact("the snapshot is in host memory after", 1e3 * statistics.median(there[2:]), "ms"),
        Fact("a selector has applied it after further", 1e3 * statistics.median(applied[2:]), "ms"),
    ]
