"""Each side of a pipeline measures its costs, as a process of its own, while the other side works too.

A side builds what a run would build, says that it is ready, and measures when it is told to. When it has
measured it goes on working until it is told otherwise, because the other side may not be done. Costs are
wall-clock means without the extremes: what else this machine does is part of what a run would meet.
"""

import json
import queue
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from sbpipe.config import Config
from sbpipe.data import Data, load_data
from sbpipe.machine import devices
from sbpipe.models import build_model, parts_of
from sbpipe.models.losses import build_loss
from sbpipe.process.gauge import MEASURE, READY, REST
from sbpipe.records import Lease
from sbpipe.runs.events import EventLog
from sbpipe.runs.spans import Spans
from sbpipe.scoring.precision import supported
from sbpipe.selector.answer import Selector
from sbpipe.selector.build import assemble
from sbpipe.trainer.optimizer import build_optimizer
from sbpipe.trainer.setup import Setup, prepare
from sbpipe.trainer.step import TrainStep
from sbpipe.weights.manifest import build_manifest
from sbpipe.weights.publisher import PartPublisher
from sbpipe.weights.replica import SlotSource
from sbpipe.weights.slots import Slots

_TASTE = 8
_LEAST_STEPS = 3
_TRIMMED = 0.1
"""Share of the measurements left out at either end."""

Costs = dict[str, Any]


def measure_side(side: str, config: Config, say: Callable[[str], None]) -> None:
    """Build, then do as the lines of the input say until there are no more.

    `measure SECONDS` and `again SECONDS` (the essence only) are answered with what was found, and the work
    goes on until the next line; `rest` is answered when it has stopped.
    """
    measuring: _Trainer | _Selector = _Trainer(config) if side == "trainer" else _Selector(config)
    orders: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_read, args=[orders], daemon=True).start()
    say(READY)
    while order := orders.get():
        word, _, seconds = order.partition(" ")
        if word == REST:
            say(REST)
            continue
        found = measuring.measure(float(seconds)) if word == MEASURE else measuring.again(float(seconds))
        say(json.dumps(found))
        while orders.empty():
            measuring.work()


def _read(orders: "queue.Queue[str]") -> None:
    for line in sys.stdin:
        orders.put(line.strip())
    orders.put("")


class _Trainer:
    """Trains as the loop does: the next batch is loaded in a thread while one trains, then a publish."""

    def __init__(self, config: Config) -> None:
        self._setup: Setup = prepare(config)
        self._slots = self._setup.slots()
        self._publisher = PartPublisher(
            self._setup.train_step.model,
            self._setup.manifest,
            self._slots,
            Spans(),
            lambda part, version, is_late: None,
        )
        self._loader = ThreadPoolExecutor(1)
        self._batches = _batches_of(self._setup.data, config.train.batch_size)
        self._next = self._loader.submit(self._load)
        self._load_s: list[float] = []
        self._step_s: list[float] = []
        self._publish_s: list[float] = []
        self._period_s: list[float] = []
        self.work()

    def measure(self, seconds: float) -> Costs:
        """Costs of the trainer's side, in milliseconds."""
        for times in (self._load_s, self._step_s, self._publish_s, self._period_s):
            times.clear()
        for _ in _for_a_while(seconds, _LEAST_STEPS):
            self.work()
        device, period_ms = self._setup.device, _mean_ms(self._period_s)
        publish_ms = _mean_ms(self._publish_s)
        # What else the loop takes is the loading that did not overlap.
        beside_ms = max(0.0, period_ms - publish_ms - _mean_ms(self._step_s))
        return {
            "device": devices.describe(device),
            "kind": device.type,
            "threads": torch.get_num_threads(),
            "batch_size": self._setup.config.train.batch_size,
            "step_ms": _mean_ms(self._step_s) + beside_ms,
            "load_ms": _mean_ms(self._load_s),
            "publish_ms": publish_ms,
            "step_spread": _spread(self._period_s),
            "steps": len(self._step_s),
        }

    def again(self, seconds: float) -> Costs:
        """The same, while the other side rests."""
        return self.measure(seconds)

    def work(self) -> None:
        """One step."""
        begin = time.perf_counter()
        inputs, targets = self._next.result()
        self._next = self._loader.submit(self._load)
        loaded = time.perf_counter()
        self._setup.train_step(len(self._step_s), 0.5, inputs, targets)
        _synchronise(self._setup.device)
        stepped = time.perf_counter()
        self._publisher.publish(len(self._publish_s) + 1)
        end = time.perf_counter()
        self._step_s.append(stepped - loaded)
        self._publish_s.append(end - stepped)
        self._period_s.append(end - begin)

    def _load(self) -> tuple[torch.Tensor, torch.Tensor]:
        begin = time.perf_counter()
        batch = self._setup.data.train.batch(next(self._batches), 0)
        self._load_s.append(time.perf_counter() - begin)
        return batch


class _Selector:
    """Answers leases as a selector does, each with new weights, in one precision after another."""

    def __init__(self, config: Config) -> None:
        name = devices.plan(config.train.device, config.selector.device)[1]
        self._device = devices.resolve("selector.device", name)
        devices.use(self._device)
        self._config = config
        self._data: Data = load_data(
            config.data,
            config.view,
            seed=config.seed,
            device=self._device,
            batch_size=config.train.batch_size,
        )
        self._scoring = _Scoring(self._config, "fp32", self._data, self._device)
        self._scoring.answer(_TASTE)

    def measure(self, seconds: float) -> Costs:
        """Costs of the selector's side: microseconds per candidate by precision, and the rest in ms."""
        names = supported(self._device)
        # The first one twice as long: all others are compared with it.
        each_s = seconds / (len(names) + 1)
        rows: dict[str, Costs] = {}
        for name in names:
            scoring = (
                self._scoring if name == "fp32" else _Scoring(self._config, name, self._data, self._device)
            )
            found = scoring.measure(2 * each_s if name == "fp32" else each_s, rows.get("fp32"))
            if found is not None:
                rows[name] = found
        return {
            "device": devices.describe(self._device),
            "kind": self._device.type,
            "threads": torch.get_num_threads(),
            "precisions": rows,
            "train_ms": self._train_ms() if self._device.type != "cpu" else None,
        }

    def again(self, seconds: float) -> Costs:
        """Scoring in fp32 alone: what the others gain while the trainer rests is alike."""
        return self._scoring.measure(seconds, None) or {}

    def work(self) -> None:
        """One lease."""
        self._scoring.answer(self._config.train.batch_size)

    def _train_ms(self) -> float:
        """A train step on this device: what it would give to data-parallel training."""
        config = self._config
        model = _model_of(config, self._data).to(self._device)
        step = TrainStep(
            config, model, build_loss(config.loss), build_optimizer(config.optim, model), Spans()
        )
        inputs, targets = self._data.train.batch(np.arange(config.train.batch_size), 0)
        times = []
        for k in range(1 + _LEAST_STEPS):
            begin = time.perf_counter()
            step(k, 0.5, inputs, targets)
            _synchronise(self._device)
            times.append(time.perf_counter() - begin)
        return 1e3 * statistics.fmean(times[1:])


class _Scoring:
    """A selector in one precision, and a publisher beside it that gives it new weights."""

    def __init__(self, config: Config, precision: str, data: Data, device: torch.device) -> None:
        own = replace(config.selector, precision=precision, batch_size=config.score_batch_size)
        self._config, self._precision = replace(config, selector=own), precision
        model = _model_of(config, data)
        manifest = build_manifest(model, parts_of(model), config.sync.dtype)
        slots = Slots.create(manifest.num_bytes)
        self._publisher = PartPublisher(model, manifest, slots, Spans(), lambda part, version, is_late: None)
        self._publisher.publish(0)
        self._selector: Selector = assemble(
            self._config, data, SlotSource(slots), device, Spans(), EventLog(None, "selector")
        )[0]
        self._num_examples, self._place, self._version = data.train.num_examples, 0, 0

    def measure(self, seconds: float, fp32: Costs | None) -> Costs | None:
        """Microseconds per candidate and milliseconds per apply; None if it is of no use here."""
        if self._selector.precision != self._precision:
            return None
        # The second: the first warms up.
        taste_s = min(self.answer(_TASTE)[0] for _ in range(2))
        # A precision that the device only imitates can be ten times as slow: a taste must do.
        if fp32 is not None and taste_s > 4.0 * fp32["taste_s"]:
            return None
        whole = round(self._config.train.batch_size / self._config.selection.keep_rate)
        is_quick = taste_s / _TASTE * whole < seconds / 3
        size = whole if is_quick else self._config.train.batch_size
        answers = [self.answer(size) for _ in _for_a_while(seconds, 1)]
        each_s = [taken / count for taken, _, count in answers]
        return {
            "taste_s": taste_s,
            "score_us": 1e6 * _trimmed(each_s),
            "score_spread": _spread(each_s),
            "apply_ms": 1e3 * _trimmed([apply_s for _, apply_s, _ in answers]),
        }

    def answer(self, size: int) -> tuple[float, float, int]:
        """Answer a lease with new weights: seconds without applying, seconds of applying, candidates."""
        size = min(size, self._num_examples)
        if self._place + size > self._num_examples:
            self._place = 0
        self._version += 1
        self._publisher.publish(self._version)
        keep = self._config.selection.keep_rate
        lease = Lease(
            lease_id=self._version,
            epoch=0,
            start=self._place,
            stop=self._place + size,
            enough=max(1, round(size * keep)),
            most=size,
            version=self._version,
            keep=keep,
        )
        self._place += size
        before = self._selector.stats().apply_s
        begin = time.perf_counter()
        selection = self._selector.answer(lease)
        took = time.perf_counter() - begin
        apply_s = self._selector.stats().apply_s - before
        return took - apply_s, apply_s, len(selection.scores)


def _model_of(config: Config, data: Data) -> torch.nn.Module:
    return build_model(
        config.model, num_classes=data.num_classes, input_shape=data.input_shape, seed=config.seed
    )


def _batches_of(data: Data, batch_size: int) -> Iterator[np.ndarray[Any, np.dtype[np.int64]]]:
    """Ids of batches from all over the data set, without end: neighbours would be cached."""
    rng = np.random.default_rng(0)
    while True:
        yield rng.integers(0, data.train.num_examples, batch_size)


def _for_a_while(seconds: float, least: int) -> Iterator[int]:
    """Counts, at least so far and until the time is up."""
    give_up, count = time.perf_counter() + seconds, 0
    while count < least or time.perf_counter() < give_up:
        yield count
        count += 1


def _synchronise(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def _mean_ms(seconds: Sequence[float]) -> float:
    return 1e3 * _trimmed(seconds)


def _trimmed(values: Sequence[float]) -> float:
    """The mean without the extremes."""
    ordered = sorted(values)
    cut = int(len(ordered) * _TRIMMED)
    return statistics.fmean(ordered[cut : len(ordered) - cut])


def _spread(values: Sequence[float]) -> float:
    """Half of what lies between the sixths at either end, over the mean: of a normal, about its deviation."""
    ordered = sorted(values)
    cut = len(ordered) // 6
    return (ordered[len(ordered) - 1 - cut] - ordered[cut]) / 2.0 / statistics.fmean(ordered)
