"""A selector's side of a pipeline, measured: leases answered with new weights, in each precision."""

import statistics
import time
from dataclasses import replace

import numpy as np
import torch

from sbpipe.config import Config
from sbpipe.data import Data, load_data
from sbpipe.errors import DeviceError
from sbpipe.machine import devices
from sbpipe.machine.beside import keep_to_what_is_left
from sbpipe.models import build_model, parts_of
from sbpipe.models.losses import build_loss
from sbpipe.process.gauge_samples import LEAST_STEPS, Costs, for_a_while, spread, synchronise, trimmed
from sbpipe.records import Lease
from sbpipe.runs.events import EventLog
from sbpipe.runs.spans import Spans
from sbpipe.scoring.precision import supported
from sbpipe.selector.answer import Selector
from sbpipe.selector.assemble import assemble
from sbpipe.trainer.optimizer import build_optimizer
from sbpipe.trainer.step import TrainStep
from sbpipe.weights.manifest import build_manifest
from sbpipe.weights.publisher import PartPublisher
from sbpipe.weights.replica import SlotSource
from sbpipe.weights.slots import Slots

_TASTE = 8


class SelectorGauge:
    """Answers leases as a selector does, each with new weights, in one precision after another."""

    def __init__(self, config: Config) -> None:
        planned = devices.plan(config.train.device, config.selector.device)
        self._device = devices.resolve("selector.device", planned[1])
        keep_to_what_is_left(config, *planned, is_guest=False)
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
            try:
                scoring = (
                    self._scoring
                    if name == "fp32"
                    else _Scoring(self._config, name, self._data, self._device)
                )
            except DeviceError:  # the device has the precision, but not for this model
                continue
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
        for k in range(1 + LEAST_STEPS):
            begin = time.perf_counter()
            step(k, 0.5, inputs, targets)
            synchronise(self._device)
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
        answers = [self.answer(size) for _ in for_a_while(seconds, 1)]
        each_s = [taken / count for taken, _, count in answers]
        return {
            "taste_s": taste_s,
            "score_us": 1e6 * trimmed(each_s),
            "score_spread": spread(each_s),
            "apply_ms": 1e3 * trimmed([apply_s for _, apply_s, _ in answers]),
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
    data.refuse_trees("sbpipe plan")
    return build_model(
        config.model, num_classes=data.num_classes, input_shape=data.input_shape, seed=config.seed
    )
