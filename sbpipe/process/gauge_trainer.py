"""The trainer's side of a pipeline, measured: steps, loading and publishing as the loop has them."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

from sbpipe.config import Config
from sbpipe.data import Data
from sbpipe.machine import devices
from sbpipe.process.gauge_samples import LEAST_STEPS, Costs, for_a_while, mean_ms, spread, synchronise
from sbpipe.runs.spans import Spans
from sbpipe.trainer.setup import Setup, prepare
from sbpipe.weights.publisher import PartPublisher


class TrainerGauge:
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
        self._load_s: list[float] = []
        self._step_s: list[float] = []
        self._publish_s: list[float] = []
        self._period_s: list[float] = []
        self._batches = _batches_of(self._setup.data, config.train.batch_size)
        self._loader = ThreadPoolExecutor(1)
        # Last: from here on the loader's thread uses what stands above.
        self._next = self._loader.submit(self._load)
        self.work()

    def measure(self, seconds: float) -> Costs:
        """Costs of the trainer's side, in milliseconds."""
        for times in (self._load_s, self._step_s, self._publish_s, self._period_s):
            times.clear()
        for _ in for_a_while(seconds, LEAST_STEPS):
            self.work()
        device, period_ms = self._setup.device, mean_ms(self._period_s)
        publish_ms = mean_ms(self._publish_s)
        # What else the loop takes is the loading that did not overlap.
        beside_ms = max(0.0, period_ms - publish_ms - mean_ms(self._step_s))
        return {
            "device": devices.describe(device),
            "kind": device.type,
            "threads": torch.get_num_threads(),
            "batch_size": self._setup.config.train.batch_size,
            "step_ms": mean_ms(self._step_s) + beside_ms,
            "load_ms": mean_ms(self._load_s),
            "publish_ms": publish_ms,
            "weights_bytes": self._setup.manifest.num_bytes,
            "step_spread": spread(self._period_s),
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
        synchronise(self._setup.device)
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


def _batches_of(data: Data, batch_size: int) -> Iterator[np.ndarray[Any, np.dtype[np.int64]]]:
    """Ids of batches from all over the data set, without end: neighbours would be cached."""
    rng = np.random.default_rng(0)
    while True:
        yield rng.integers(0, data.train.num_examples, batch_size)
