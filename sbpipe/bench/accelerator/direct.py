"""Weights from one device to the other without the host, as with `sync.direct`: whether they arrive, how
fast, and whether another process can open the memory that they lie in.

Run as `python -m sbpipe.bench.accelerator.direct NAME DEVICE` it is that process, and prints what it read.
"""

import copy
import hashlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial

import torch

from sbpipe.bench.accelerator.check import Fact, NotHere, Size, attempt
from sbpipe.bench.accelerator.stage import Stage, pair, set_stage
from sbpipe.machine import devices
from sbpipe.runs.spans import Spans
from sbpipe.weights import direct
from sbpipe.weights.direct import Handle, Sharing
from sbpipe.weights.leftovers import PREFIX
from sbpipe.weights.manifest import digest
from sbpipe.weights.publisher import PartPublisher
from sbpipe.weights.replica import Replica, SlotSource
from sbpipe.weights.slots import Slots

_PATIENCE_S = 60.0


class _InThisProcess:
    """Memory that is found by its number: what the copies do, without handles."""

    def __init__(self) -> None:
        self._made: list[torch.Tensor] = []

    def new(self, num_bytes: int, device: torch.device) -> tuple[torch.Tensor, Handle]:
        self._made.append(torch.zeros(num_bytes, dtype=torch.uint8, device=device))
        return self._made[-1], Handle(str(device), f"{len(self._made) - 1:04x}", num_bytes)

    def open(self, handle: Handle, device: torch.device) -> torch.Tensor:
        return self._made[int(handle.memory, 16)]


def measure(size: Size) -> Sequence[Fact]:
    """Copies within this process; then handles, and a second process."""
    trainer, selector = pair()
    devices.use(trainer)
    stage = set_stage(size, trainer)
    return [
        *attempt("copies", partial(_copies, size, stage, selector)),
        *attempt("from another process", partial(_from_another_process, stage, selector)),
    ]


def _copies(size: Size, stage: Stage, selector: torch.device) -> Iterator[Fact]:
    """Medians of some snapshots, one after the other."""
    model, manifest = stage.setup.train_step.model, stage.setup.manifest
    sharing = _InThisProcess()
    slots = _slots(stage, sharing)
    other = copy.deepcopy(model).to(selector)
    replica = Replica(other, manifest)
    source = SlotSource(direct.attach(_name(), selector, sharing=sharing))
    publisher = PartPublisher(model, manifest, slots, Spans(), lambda part, version, is_late: None)
    held, applied = [], []
    try:
        for version in range(1, size.rounds + 3):
            stage.train(version)
            torch.accelerator.synchronize(stage.device)
            begin = time.perf_counter()
            # Skipped while the last one, which is there already, is still being tidied up.
            while not publisher.publish(version):
                begin = time.perf_counter()
            held.append(time.perf_counter() - begin)
            source.refresh(replica, version, exact=True, deadline_s=_PATIENCE_S)
            torch.accelerator.synchronize(selector)
            applied.append(time.perf_counter() - begin)
    finally:
        publisher.close()
        slots.close()
    yield Fact("the loop is held by a publish", 1e3 * statistics.median(held[2:]), "ms")
    yield Fact("the other device has applied it after", 1e3 * statistics.median(applied[2:]), "ms")
    yield Fact("the same bits there", digest(other) == digest(model))


def _from_another_process(stage: Stage, selector: torch.device) -> Iterator[Fact]:
    if stage.device.type != "cuda":
        raise NotHere(f"only CUDA has handles of memory, this is {stage.device.type}")
    slots = _slots(stage, direct.sharing_of(stage.device, "train.device"))
    publisher = PartPublisher(
        stage.setup.train_step.model, stage.setup.manifest, slots, Spans(), lambda *told: None
    )
    try:
        publisher.publish(1, must=True)
        command = [sys.executable, "-m", "sbpipe.bench.accelerator.direct", _name(), str(selector)]
        begin = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S, check=False)
        took_s = time.perf_counter() - begin
        if done.returncode:
            raise RuntimeError((done.stderr.strip().splitlines() or ["it said nothing"])[-1])
        yield Fact("it reads the same bytes", done.stdout.split() == ["1", _hash(slots.slot(slots.newest))])
        yield Fact("it has started and read after", took_s, "s")
    finally:
        publisher.close()
        slots.close()


def _slots(stage: Stage, sharing: Sharing) -> Slots:
    return direct.create(
        stage.setup.manifest.num_bytes, stage.device, name=_name().removeprefix(PREFIX), sharing=sharing
    )


def _name() -> str:
    return f"{PREFIX}bench-{os.getpid()}"


def _hash(flat: torch.Tensor) -> str:
    return hashlib.sha256(flat.cpu().numpy().tobytes()).hexdigest()


def main() -> None:
    """Open the slots of the process that started this one, and tell what the newest holds."""
    name, device = sys.argv[1], torch.device(sys.argv[2])
    devices.use(device)
    slots = direct.attach(name, device)
    flat = torch.empty(slots.slot_bytes, dtype=torch.uint8, device=device)
    version = slots.read(slots.newest, lambda found: _read(flat, found))
    sys.stdout.write(f"{version} {_hash(flat)}\n")


def _read(flat: torch.Tensor, found: torch.Tensor) -> None:
    flat.copy_(found)
    torch.accelerator.synchronize(flat.device)


if __name__ == "__main__":
    main()
