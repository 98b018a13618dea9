"""A trainer and its fleet of selectors: what is leased, its staleness when it is trained, and the cost.

The trainer's engine is whole; its device and those of the selectors are simulated by waiting.
"""

import contextlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from sbpipe.bench.scale.selectors import FINGERPRINTS
from sbpipe.config import Config, resolve
from sbpipe.link.opening import Listener
from sbpipe.models import parts_of
from sbpipe.records import Ids, RunEnd
from sbpipe.runs.events import EventLog
from sbpipe.runs.spans import Spans
from sbpipe.trainer.engine import Engine
from sbpipe.trainer.job import Job
from sbpipe.trainer.setup import slots_for
from sbpipe.weights.manifest import build_manifest

BATCH, KEEP = 128, 0.25
WARM_UP = 30
_PATIENCE_S = 120.0
"""Deadlines until all selectors are ready, and gone: only a hang takes so long."""
_EXAMPLES = 10**8
_CLASSES = 10


@dataclass(frozen=True)
class Found:
    """The work of a fleet in some steps."""

    leases: int
    candidates: int
    """In these leases."""
    dispatch_s: float
    """Processor time of the dispatcher's thread."""
    wall_s: float
    cpu_s: float
    """Processor time of all threads of the trainer per step: what the loop loses if all share a core."""
    over_s: float
    """Median time of a step beyond its device's time."""
    idle_s: float
    """The loop's total wait for batches."""
    staleness: float
    stalest: int
    filled: float
    waste: float
    """Share of what was scored that did not count."""
    lease_bytes: float = 0.0
    """On all connections, both ways, heartbeats too, of each lease."""


class _NoExamples:
    """Batches that take no time to load, and tell their classes as a classifier's do."""

    def batch(self, example_ids: Ids, epochs: int | Ids) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.empty(0), torch.from_numpy(example_ids % _CLASSES)


def run_fleet(
    count: int,
    *,
    speed: float,
    step_s: float,
    steps: int,
    warm_up: int = WARM_UP,
    given: Mapping[str, Any] | None = None,
) -> Found:
    """Train so many steps with so many simulated selectors of this speed."""
    config = resolve(
        {
            "train.batch_size": BATCH,
            "selection.keep": KEEP,
            "train.steps": 10**9,
            # Selectors and trainer share a few cores here: one that waits for a core is not lost.
            "link.lost_after_s": 60.0,
            "link.heartbeat_s": 5.0,
            **(given or {}),
        }
    )
    with _trainer(config) as (engine, folder), _selectors(folder, count, speed) as child:
        try:
            _await_all(engine, count, child)
            found = _steps(engine, step_s, steps, warm_up)
        finally:
            engine.stop(RunEnd.FINISHED)
        num_bytes, num_answers = map(int, child.communicate(timeout=_PATIENCE_S)[0].split())
        return replace(found, lease_bytes=num_bytes / num_answers)


@contextlib.contextmanager
def _selectors(folder: Path, count: int, speed: float) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "sbpipe.bench.scale.selectors", str(folder), str(count), str(speed)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


@contextlib.contextmanager
def _trainer(config: Config) -> Iterator[tuple[Engine, Path]]:
    model = nn.Linear(8, 8)
    manifest = build_manifest(model, parts_of(model), "fp32")
    listener = Listener(config.link)
    with tempfile.TemporaryDirectory() as folder:
        listener.announce(Path(folder))
        job = Job(config, model, manifest, _NoExamples(), _EXAMPLES, _CLASSES, None, dict(FINGERPRINTS))
        slots = slots_for(config, manifest, torch.device("cpu"))
        engine = Engine(job, listener.port, slots, EventLog(None, "trainer"), Spans())
        engine.begin()
        engine.start()
        try:
            yield engine, Path(folder)
        finally:
            engine.close()
            listener.withdraw()


def _await_all(engine: Engine, count: int, child: subprocess.Popen[str]) -> None:
    give_up = time.monotonic() + _PATIENCE_S
    while len(engine.roster.ready()) < count:
        if time.monotonic() > give_up or child.poll() is not None:
            raise TimeoutError(f"{len(engine.roster.ready())} of {count} simulated selectors are ready")
        time.sleep(0.05)


def _steps(engine: Engine, step_s: float, steps: int, warm_up: int) -> Found:
    is_stopped, ledger = threading.Event(), engine.stream.ledger
    times, waits, stale, filled = list[float](), list[float](), list[Ids](), 0
    for step in range(1, warm_up + steps + 1):
        if step == warm_up + 1:
            before = ledger.num_selected, ledger.num_considered, *_clocks()
        begin = time.perf_counter()
        prepared = engine.next_batch(is_stopped)
        assert prepared is not None
        wait_s = time.perf_counter() - begin
        if step_s:
            time.sleep(step_s)
        batch = prepared.batch
        engine.take_losses(batch, torch.rand(len(batch.example_ids)), prepared.targets)
        engine.finish_step(step)
        if step > warm_up:
            times.append(time.perf_counter() - begin)
            waits.append(wait_s)
            stale.append((batch.step - batch.version)[~batch.is_fill])
            filled += int(batch.is_fill.sum())
    after = ledger.num_selected, ledger.num_considered, *_clocks()
    leases, candidates, dispatch_s, wall_s, cpu_s = (b - a for a, b in zip(before, after, strict=True))
    all_stale = np.concatenate(stale)
    return Found(
        leases=int(leases),
        candidates=int(candidates),
        dispatch_s=dispatch_s,
        wall_s=wall_s,
        cpu_s=cpu_s / steps,
        over_s=statistics.median(times) - step_s,
        idle_s=sum(waits),
        staleness=float(all_stale.mean()) if len(all_stale) else 0.0,
        stalest=int(all_stale.max(initial=0)),
        filled=filled / (steps * engine.stream.batch_size),
        waste=_waste(engine),
    )


def _waste(engine: Engine) -> float:
    """Of what was scored in all; fills are considered without being scored."""
    scored = engine.roster.total(lambda stats: stats.scored)
    considered = engine.stream.ledger.num_considered - sum(engine.totals()[key] for key in _FILLED)
    return max(0.0, 1.0 - considered / scored) if scored else 0.0


_FILLED = ("fill.starting", "fill.alone", "fill.late")


def _clocks() -> tuple[float, float, float]:
    """Processor time of the dispatcher's thread so far, the wall's, and processor time of all threads."""
    thread = next(thread for thread in threading.enumerate() if thread.name == "dispatch")
    assert thread.ident is not None
    dispatch_s = time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
    return dispatch_s, time.perf_counter(), time.process_time()
