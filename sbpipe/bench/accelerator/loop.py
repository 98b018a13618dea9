"""The trainer's own step on a device: engine, feed, weights of examples and publisher as in a run.

No selector is there, so every batch is filled from the line, and nothing is scored beside the step.
"""

import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from sbpipe.bench.accelerator.check import Size
from sbpipe.bench.accelerator.stage import settings
from sbpipe.link.inline import InlinePort
from sbpipe.records import RunEnd
from sbpipe.runs.directory import RunDir
from sbpipe.runs.events import EventLog
from sbpipe.trainer.engine import Engine
from sbpipe.trainer.run import TrainerRun
from sbpipe.trainer.setup import Setup, prepare

_ENDLESS = 10**9
"""Steps of a loop that whoever drives it ends."""


class Steps:
    """A loop that takes a step when it is told to."""

    def __init__(self, setup: Setup, engine: Engine) -> None:
        self._setup, self._engine = setup, engine
        self._never = threading.Event()
        self._step = 0

    def take(self) -> None:
        """One step, as the loop of a run takes it, but for its log."""
        engine = self._engine
        prepared = engine.next_batch(self._never)
        assert prepared is not None, "it has no end"
        weigh = engine.weigher(prepared.batch)
        losses = self._setup.train_step(self._step, 0.5, prepared.inputs, prepared.targets, weigh)
        self._step += 1
        engine.take_losses(prepared.batch, losses, prepared.targets)
        engine.finish_step(self._step)


@contextmanager
def steps_on(size: Size, device: torch.device) -> Iterator[Steps]:
    """A loop on a device; its threads are gone afterwards."""
    setup = prepare(_of_nobody(size, device, train__steps=_ENDLESS))
    engine = _engine(setup, EventLog(None, "trainer"))
    try:
        engine.begin()
        engine.start()
        yield Steps(setup, engine)
        engine.stop(RunEnd.FINISHED)
    finally:
        engine.close()
        setup.data.close()


def told_by_a_run(size: Size, device: torch.device) -> dict[str, Any]:
    """The summary of a run of some steps."""
    setup = prepare(_of_nobody(size, device))
    with tempfile.TemporaryDirectory() as folder:
        run_dir, events = (
            RunDir.open(Path(folder) / "run", resume=False, overwrite=False),
            EventLog(None, "trainer"),
        )
        run_dir.write_config(setup.config)
        run = TrainerRun(setup, run_dir, _engine(setup, events), events, began=time.perf_counter())
        return run.run(resume=False)


def _of_nobody(size: Size, device: torch.device, **changes: Any) -> Any:
    return settings(size, device, mode="pipelined", selection__late="fill", **changes)


def _engine(setup: Setup, events: EventLog) -> Engine:
    port = InlinePort(lambda message: [], "nobody")
    return Engine(setup.job(), port, setup.slots(), events, setup.spans)
