"""One to 256 selectors: what is leased, how old it is when it is trained, and what that costs the loop.

The trainer's engine is whole; its device and those of the selectors are simulated by waiting. How many leases
a second the dispatcher can handle is measured in a flood: a loop whose steps take no time, and that waits for
whole batches. It is told by the wall, in which the simulated selectors and the loop have their share of the
same cores, and of the processor time of the dispatcher's thread.
"""

import contextlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from sbpipe.bench.rows import Row
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

COUNTS = (1, 4, 16, 64, 256)
BATCH, KEEP, STEP_S = 128, 0.25, 0.1
CAPACITY = 1.5
"""What the selectors score together, over what the loop needs."""
_STEPS, _WARM_UP = 60, 30
FLOOD_BATCH = 256
"""Four of these are 64 leases of 64 candidates, one for each selector."""
_FLOOD_STEPS = 500
_READY_S = 120.0
_EXAMPLES = 10**8


@dataclass(frozen=True)
class Found:
    """What a fleet did in some steps."""

    leases: int
    dispatch_s: float
    """Processor time of the dispatcher's thread."""
    wall_s: float
    cpu_s: float
    """Processor time of all threads of the trainer per step: what the loop loses if all share a core."""
    over_s: float
    """Median time of a step beyond what its device takes."""
    staleness: float
    stalest: int
    filled: float
    waste: float
    """Share of what was scored that did not count."""


class _NoExamples:
    """Batches that take no time to load."""

    def batch(self, example_ids: Ids, epochs: int | Ids) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.empty(0), torch.empty(0)


def measure_fleets() -> list[Row]:
    """The table of fleets, what a lease costs the dispatcher, and what 64 selectors cost the loop."""
    rows, found = [], dict[int, Found]()
    for count in COUNTS:
        speed = CAPACITY * BATCH / KEEP / STEP_S / count
        found[count] = one = run_fleet(count, speed=speed, step_s=STEP_S, steps=_STEPS)
        name = f"{count} selectors, {CAPACITY} × what the loop needs"
        has_bar = count == 64
        rows += [
            Row("scale", f"{name}: staleness", one.staleness, "steps"),
            Row("scale", f"{name}: the stalest", one.stalest, "steps"),
            Row("scale", f"{name}: filled", 100 * one.filled, "%"),
            Row("scale", f"{name}: scored in vain", 100 * one.waste, "%", at_most=10 if has_bar else None),
        ]
    more = 100 * (found[64].cpu_s - found[1].cpu_s) / STEP_S
    slower = 100 * (found[64].over_s - found[1].over_s) / STEP_S
    rows += [
        Row("scale", "64 selectors: step time over that with 1", slower, "%", at_most=1),
        Row("scale", "64 selectors: the trainer's processor time over that with 1", more, "% of a step"),
    ]
    return [*rows, *_flood_rows()]


def _flood_rows() -> list[Row]:
    found = run_flood(64, steps=_FLOOD_STEPS)
    by_wall, by_thread = found.leases / found.wall_s, found.leases / found.dispatch_s
    return [
        Row("scale", "64 selectors that answer at once", by_wall, "leases/s by the wall", at_least=5000),
        Row("scale", "64 selectors that answer at once", by_thread, "leases/s of the dispatcher's core"),
    ]


def run_flood(count: int, *, steps: int, warm_up: int = _WARM_UP) -> Found:
    """As many leases as can be had."""
    given = {"train.batch_size": FLOOD_BATCH, "selection.late": "wait"}
    return run_fleet(count, speed=0.0, step_s=0.0, steps=steps, warm_up=warm_up, given=given)


def run_fleet(
    count: int,
    *,
    speed: float,
    step_s: float,
    steps: int,
    warm_up: int = _WARM_UP,
    given: Mapping[str, Any] | None = None,
) -> Found:
    """Train so many steps with so many simulated selectors of this speed."""
    config = resolve(
        {
            "train.batch_size": BATCH,
            "selection.keep": KEEP,
            "train.steps": 10**9,
            # Selectors and trainer share a few cores here: who waits for one is not lost.
            "link.lost_after_s": 60.0,
            "link.heartbeat_s": 5.0,
            **(given or {}),
        }
    )
    with _trainer(config) as (engine, folder):
        command = [sys.executable, "-m", "sbpipe.bench.scale.selectors", str(folder), str(count), str(speed)]
        child = subprocess.Popen(command)
        try:
            _await_all(engine, count, child)
            return _steps(engine, step_s, steps, warm_up)
        finally:
            engine.stop(RunEnd.FINISHED)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(10.0)
            child.kill()
            child.wait()


@contextlib.contextmanager
def _trainer(config: Config) -> Iterator[tuple[Engine, Path]]:
    model = nn.Linear(8, 8)
    manifest = build_manifest(model, parts_of(model), "fp32")
    listener = Listener(config.link)
    with tempfile.TemporaryDirectory() as folder:
        listener.announce(Path(folder))
        job = Job(config, model, manifest, _NoExamples(), _EXAMPLES, 0, None, dict(FINGERPRINTS))
        slots = slots_for(config, manifest, torch.device("cpu"))
        engine = Engine(job, listener.port, slots, EventLog(None, "trainer"), Spans())
        engine.begin()
        engine.start()
        try:
            yield engine, Path(folder)
        finally:
            engine.close()
            listener.withdraw()


def _await_all(engine: Engine, count: int, child: subprocess.Popen[bytes]) -> None:
    give_up = time.monotonic() + _READY_S
    while len(engine.roster.ready()) < count:
        if time.monotonic() > give_up or child.poll() is not None:
            raise TimeoutError(f"{len(engine.roster.ready())} of {count} simulated selectors are ready")
        time.sleep(0.05)


def _steps(engine: Engine, step_s: float, steps: int, warm_up: int) -> Found:
    is_stopped = threading.Event()
    times, stale, filled = list[float](), list[Ids](), 0
    before = 0, 0.0, 0.0, 0.0
    for step in range(1, warm_up + steps + 1):
        if step == warm_up + 1:
            before = (
                engine.stream.ledger.num_selected,
                _dispatch_s(),
                time.perf_counter(),
                time.process_time(),
            )
        begin = time.perf_counter()
        prepared = engine.next_batch(is_stopped)
        assert prepared is not None
        if step_s:
            time.sleep(step_s)
        batch = prepared.batch
        engine.take_losses(batch, torch.rand(len(batch.example_ids)), prepared.targets)
        engine.finish_step(step)
        if step > warm_up:
            times.append(time.perf_counter() - begin)
            stale.append((batch.step - batch.version)[~batch.is_fill])
            filled += int(batch.is_fill.sum())
    leases, dispatch_s, began, cpu_s = before
    stream, all_stale = engine.stream, np.concatenate(stale)
    scored = engine.roster.total(lambda stats: stats.scored)
    # Fills are considered without being scored.
    considered = stream.ledger.num_considered - sum(engine.totals()[key] for key in _FILLED)
    return Found(
        leases=stream.ledger.num_selected - leases,
        dispatch_s=_dispatch_s() - dispatch_s,
        wall_s=time.perf_counter() - began,
        cpu_s=(time.process_time() - cpu_s) / steps,
        over_s=statistics.median(times) - step_s,
        staleness=float(all_stale.mean()) if len(all_stale) else 0.0,
        stalest=int(all_stale.max(initial=0)),
        filled=filled / (steps * engine.stream.batch_size),
        waste=max(0.0, 1.0 - considered / scored) if scored else 0.0,
    )


_FILLED = ("fill.starting", "fill.alone", "fill.late")


def _dispatch_s() -> float:
    """Processor time of the dispatcher's thread so far."""
    thread = next(thread for thread in threading.enumerate() if thread.name == "dispatch")
    assert thread.ident is not None
    return time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
