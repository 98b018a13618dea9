"""The trainer's side of a short run: its own loop, engine and threads, with a step that can be told to rest.

It leaves a run's events and says what it computes on. It must not know what they are read for.
"""

import threading
import time
from pathlib import Path
from typing import Any

import torch

from sbpipe.config import Config
from sbpipe.link.opening import Listener
from sbpipe.machine import devices
from sbpipe.machine.cores import SpareCores
from sbpipe.process.gauge_side import REST, WORK
from sbpipe.records import RunEnd
from sbpipe.runs.directory import TRAINER_EVENTS
from sbpipe.runs.events import EventLog
from sbpipe.trainer.loop import Loop
from sbpipe.trainer.ranks.lead import engine_of
from sbpipe.trainer.record.telemetry import Telemetry
from sbpipe.trainer.setup import prepare
from sbpipe.trainer.step import TrainStep


class RestingStep(TrainStep):
    """A train step that, while it rests, only takes as long as one."""

    rests = False
    """Whether it does; told by another thread."""
    _began: float | None = None
    _took_s = 0.0
    _last: torch.Tensor | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Train on a batch, or let so much time go by."""
        now = time.perf_counter()
        if self.rests and self._last is not None:
            time.sleep(self._took_s)
            self._began = None
            return self._last
        if self._began is not None:
            self._took_s = now - self._began
        self._began = now
        self._last = super().__call__(*args, **kwargs)
        return self._last


class TrainerGauge:
    """Trains until it is stopped, and does meanwhile as it is told."""

    def __init__(self, config: Config, spare: SpareCores) -> None:
        """Threads beside the loop are on the `spare` cores, as in a run."""
        folder = Path(config.link.connect)
        self._spare = spare
        self._setup = setup = prepare(config, make_step=RestingStep.alone)
        setup.data.refuse_trees("sbpipe plan")
        with spare.for_threads():
            self._listener = Listener(config.link)
        port = self._listener.port
        self._events = EventLog(folder / TRAINER_EVENTS, "trainer")
        self._engine = engine_of(setup, None, port, setup.slots(port.session), self._events)
        self._loop = Loop(
            config,
            self._engine,
            setup.train_step,
            Telemetry(
                self._events,
                setup.spans,
                self._engine,
                process_began=time.perf_counter(),
                messages_are_beside=bool(spare) or setup.device.type != "cpu",
            ),
            setup.spans,
            evaluate=lambda: None,
            save=lambda step: None,
            must_save=lambda: False,
            doing=lambda what: None,
            is_stopped=threading.Event(),
        )
        self._listener.announce(folder)

    @property
    def facts(self) -> dict[str, Any]:
        """What a plan says of this side beside its costs."""
        device = self._setup.device
        return {
            "device": devices.describe(device),
            "kind": device.type,
            "threads": torch.get_num_threads(),
            "weights_bytes": self._setup.manifest.num_bytes,
        }

    def run(self) -> None:
        """Train until `stop`; in the main thread, as in a run."""
        try:
            self._engine.begin()
            self._engine.start(self._spare)
            self._loop.run(0)
            self._engine.stop(RunEnd.STOPPED)
        finally:
            self._listener.withdraw()
            self._engine.close()
            self._setup.data.close()
            self._events.close()

    def obey(self, order: str) -> dict[str, Any]:
        """From another thread: train, or let the time of each step go by."""
        step = self._setup.train_step
        assert isinstance(step, RestingStep), "made by this gauge"
        assert order in (WORK, REST), order
        step.rests = order == REST
        return {}

    def stop(self) -> None:
        """From another thread: end after this step."""
        self._loop.is_stopped.set()
