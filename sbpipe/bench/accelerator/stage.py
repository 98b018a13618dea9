"""What checks measure with: a model that was trained a little on the device, its candidates, and a clock."""

import copy
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sbpipe.bench.accelerator.check import NotHere, Size
from sbpipe.config import Config, resolve
from sbpipe.machine import devices
from sbpipe.scoring import Scorer
from sbpipe.trainer.setup import Setup, prepare


@dataclass(frozen=True)
class Stage:
    """A trainer's setup after some steps, and candidates on its device."""

    device: torch.device
    setup: Setup
    inputs: Tensor
    targets: Tensor

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """A train batch, one after the other."""
        size, number = self.setup.config.train.batch_size, self.setup.data.train.num_examples
        inputs, targets = self.setup.data.train.batch(np.arange(step * size, (step + 1) * size) % number, 0)
        return inputs, targets

    def train(self, step: int) -> Tensor:
        """One train step: the loss of each example, on the device."""
        return self.setup.train_step(step, 0.5, *self.batch(step))

    def scorer(
        self, precision: str = "fp32", *, compiled: bool | str = False, device: torch.device | None = None
    ) -> Scorer:
        """A scorer of a copy of the model as it is, tried on some candidates; perhaps on another device."""
        device = device or self.device
        model = copy.deepcopy(self.setup.train_step.model)
        scorer = Scorer(
            model,
            self.setup.loss,
            precision=precision,
            device=device,
            compiled=compiled,
            statistics="stored",
        )
        scorer.prepare(self.inputs.to(device), self.targets.to(device))
        return scorer


def settings(size: Size, device: torch.device, **changes: Any) -> Config:
    """The settings of a small run on a device; `train__steps` stands for `train.steps`."""
    given = {
        "train.device": str(device),
        "data.examples": size.examples,
        "data.test_examples": 64,
        "model.name": size.model,
        "model.options": size.options,
        "train.batch_size": size.batch_size,
        "train.steps": size.train_steps,
        "eval.every": 0.0,
        "checkpoint.every": 0,
    }
    return resolve(given | {key.replace("__", "."): value for key, value in changes.items()})


def set_stage(size: Size, device: torch.device) -> Stage:
    """Train a while: random weights would rank otherwise than those of a run."""
    setup = prepare(settings(size, device))
    inputs, targets = setup.data.score.batch(np.arange(min(size.batch_size, size.examples)), 0)
    stage = Stage(device, setup, inputs, targets)
    for step in range(size.train_steps):
        stage.train(step)
    torch.accelerator.synchronize(device)
    return stage


def first() -> torch.device:
    """The device that is measured."""
    device = devices.accelerators()[0]
    devices.use(device)
    return device


def pair() -> tuple[torch.device, torch.device]:
    """Two devices; which second one, if there are more, is the next."""
    found = devices.accelerators()
    if len(found) < 2:
        raise NotHere("there is one accelerator")
    return found[0], found[1]


def seconds(call: Callable[[], Any], device: torch.device, rounds: int) -> float:
    """Median seconds of a call until the device has done it; the first two warm up."""
    times = []
    for _ in range(rounds + 2):
        torch.accelerator.synchronize(device)
        begin = time.perf_counter()
        call()
        torch.accelerator.synchronize(device)
        times.append(time.perf_counter() - begin)
    return statistics.median(times[2:])


def has_tf32(device: torch.device) -> bool:
    """Whether a device rounds to TF32 where it is allowed to."""
    is_nvidia = device.type == "cuda" and torch.version.hip is None
    return is_nvidia and torch.cuda.get_device_capability(device)[0] >= 8
