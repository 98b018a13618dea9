"""A selector's side of a short run: served by the trainer's side over the run's own link, in one precision
after another; before, how long a message takes.

It leaves a run's events and says what it computes on. It must not know what they are read for.
"""

import queue
import statistics
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sbpipe.config import Config
from sbpipe.data import load_data
from sbpipe.errors import DeviceError, SbpipeError
from sbpipe.link.connection import read_connection
from sbpipe.link.messages import Goodbye, Hello, Welcome
from sbpipe.link.opening import open_selector_port
from sbpipe.machine import devices
from sbpipe.machine.beside import keep_to_what_is_left
from sbpipe.machine.device_spans import spans_on
from sbpipe.models import build_model
from sbpipe.models.losses import build_loss
from sbpipe.process.gauge_side import LINK, REST, SCORE
from sbpipe.records import RunEnd
from sbpipe.runs.spans import Spans
from sbpipe.scoring.precision import supported
from sbpipe.selector.build import Builder
from sbpipe.selector.forward import PASSES
from sbpipe.selector.permission import Permission
from sbpipe.selector.service import SelectorService, hello_of
from sbpipe.trainer.optimizer import build_optimizer
from sbpipe.trainer.step import TrainStep

_BUILT_S = 60.0
"""By when a selector has answered its first lease."""
_GREETINGS = 40
_TRAINED = 4


class SelectorGauge:
    """Serves the trainer's side in the precision that it is told."""

    def __init__(self, config: Config, given: Mapping[str, Any]) -> None:
        planned = devices.plan(config.train.device, config.selector.device)
        self._device = devices.resolve("selector.device", planned[1])
        keep_to_what_is_left(config, *planned, is_guest=False)
        devices.use(self._device)
        self._config, self._given = config, given
        self._folder = Path(config.link.connect)
        self._serving: _Serving | None = None
        self._turns: queue.Queue[_Serving | None] = queue.Queue()

    @property
    def facts(self) -> dict[str, Any]:
        """What a plan says of this side beside its costs."""
        return {
            "device": devices.describe(self._device),
            "kind": self._device.type,
            "threads": torch.get_num_threads(),
            "precisions": supported(self._device),
            "train_ms": self._train_ms() if self._device.type != "cpu" else None,
        }

    def run(self) -> None:
        """Serve until `stop`; in the main thread, as in a run: memory of other threads goes back sooner."""
        while (serving := self._turns.get()) is not None:
            serving.run()

    def obey(self, order: str) -> dict[str, Any]:
        """From another thread: measure messages, score in a precision, or rest."""
        word, _, precision = order.partition(" ")
        self._rest()
        if word == LINK:
            return {"message_ms": self._message_ms()}
        if word == REST:
            return {}
        assert word == SCORE, order
        own = {
            **self._given,
            "selector.precision": precision,
            "selector.batch_size": self._config.score_batch_size,
        }
        try:
            self._serving = _Serving(self._config, own, precision, self._device, self._folder)
            self._turns.put(self._serving)
            return {"precision": self._serving.precision()}
        except DeviceError as error:  # the device has the precision, but not for this model
            return {"precision": "", "reason": str(error)}

    def stop(self) -> None:
        """From another thread: end."""
        self._rest()
        self._turns.put(None)

    def _rest(self) -> None:
        serving, self._serving = self._serving, None
        if serving is not None:
            serving.stop()

    def _message_ms(self) -> float:
        """One way of a message between the two processes: half of what a greeting and its answer take."""
        port = open_selector_port(self._config.link, "plan-link", read_connection(self._folder))
        try:
            times = []
            for _ in range(_GREETINGS):
                begin = time.perf_counter()
                port.send(hello_of("plan-link", "", "fp32"))
                while not any(isinstance(message, Welcome) for message in port.receive(1.0)):
                    if time.perf_counter() - begin > _BUILT_S:
                        raise SbpipeError("the trainer's side of the plan answers no greeting")
                times.append(time.perf_counter() - begin)
            port.send(Goodbye(RunEnd.STOPPED))
            port.receive(0.0)
            # The first one connects.
            return 1e3 * statistics.median(times[1:]) / 2.0
        finally:
            port.close()

    def _train_ms(self) -> float:
        """A train step on this device: what it would give to data-parallel training."""
        config = self._config
        data = load_data(
            config.data,
            config.view,
            seed=config.seed,
            device=self._device,
            batch_size=config.train.batch_size,
        )
        model = build_model(
            config.model, num_classes=data.num_classes, input_shape=data.input_shape, seed=config.seed
        ).to(self._device)
        step = TrainStep(
            config, model, build_loss(config.loss), build_optimizer(config.optim, model), Spans()
        )
        inputs, targets = data.train.batch(np.arange(config.train.batch_size), 0)
        times = []
        for k in range(_TRAINED):
            begin = time.perf_counter()
            step(k, 0.5, inputs, targets)
            torch.accelerator.synchronize(self._device)
            times.append(time.perf_counter() - begin)
        data.close()
        return 1e3 * statistics.fmean(times[1:])


class _Serving:
    """A selector as a run has it: one thread runs it, another one leads it."""

    def __init__(
        self, config: Config, given: Mapping[str, Any], precision: str, device: torch.device, folder: Path
    ) -> None:
        name = f"plan-{precision}"
        spans, _ = spans_on(device, PASSES)
        self._builder = Builder(name, Permission(given=given, run_dir=folder), device, spans, folder)
        hello: Hello = hello_of(name, devices.describe(device), precision)
        port = open_selector_port(config.link, name, read_connection(folder))
        self._service = SelectorService(port, hello, config.link, self._builder, spans)
        self._is_stopped, self._is_over = threading.Event(), threading.Event()
        self._failure: BaseException | None = None

    def run(self) -> None:
        """Answer leases until `stop`."""
        try:
            self._service.run(self._is_stopped)
        except BaseException as error:  # noqa: BLE001 - `precision`, in the other thread, raises it again
            self._failure = error
        finally:
            self._builder.close()
            self._builder.events.close()
            self._is_over.set()

    def precision(self) -> str:
        """What it scores in, once it has answered a lease."""
        give_up = time.monotonic() + _BUILT_S
        while time.monotonic() < give_up:
            if self._failure is not None:
                raise self._failure
            stats = self._service.status()
            if stats is not None and stats.scored:
                return stats.precision
            time.sleep(0.01)
        raise SbpipeError(f"no lease was answered in {_BUILT_S:.0f} s")

    def stop(self) -> None:
        """Say goodbye."""
        self._is_stopped.set()
        self._is_over.wait(_BUILT_S)
