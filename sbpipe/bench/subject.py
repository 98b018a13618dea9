"""The subject of `bench scoring`: a trained model and real candidates. Must not know how they are scored."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from sbpipe.config import Config, from_dict
from sbpipe.data import Data, load_data
from sbpipe.errors import RunDirError
from sbpipe.machine.layout import laid_out, layout_of
from sbpipe.models import build_model
from sbpipe.models.losses import build_loss
from sbpipe.runs.names.files import CHECKPOINTS, CONFIG
from sbpipe.trainer.checkpoint import Checkpoints

CPU = torch.device("cpu")
MOST = 512
"""Candidates that are scored."""

TRAININGS: dict[str, tuple[int, int]] = {"small_cnn": (300, 64), "resnet18_cifar": (100, 32)}
"""Updates and batch size of a model's training before it scores; random weights would rank differently."""


@dataclass(frozen=True)
class Subject:
    """A trained model and real candidates."""

    name: str
    config: Config
    model: nn.Module
    inputs: Tensor
    targets: Tensor


def from_run(path: Path) -> Subject:
    """The model, the data and the last weights of a run."""
    try:
        config = from_dict(json.loads((path / CONFIG).read_text(encoding="utf-8")))
    except OSError as error:
        raise RunDirError(
            f"{path} is no run directory ({error.strerror}). Name one that sbpipe run has written"
        ) from None
    state = Checkpoints(path / CHECKPOINTS).load_newest()
    if state is None:
        raise RunDirError(f"{path} has no checkpoint to take weights from. Run with checkpoint.every above 0")
    data = _load(config)
    model = _build(config, data)
    model.load_state_dict(state["model"])
    return _subject(config, model, data)


def trained(config: Config) -> Subject:
    """Train for a while on all cores: enough that losses spread as they do in a run."""
    steps, batch_size = TRAININGS.get(config.model.name, (150, 32))
    data = _load(config)
    model = _build(config, data)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    rates = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=steps)
    loss = build_loss(config.loss)
    order = np.random.default_rng(config.seed).permutation(data.train.num_examples)
    for step in range(steps):
        if step % 50 == 0:
            sys.stderr.write(f"  training {config.model.name} first: update {step} of {steps}\n")
        # Small data sets are used more than once.
        example_ids = np.take(order, range(step * batch_size, (step + 1) * batch_size), mode="wrap")
        inputs, targets = data.train.batch(example_ids, 0)
        loss(model(laid_out(inputs, layout_of(model))), targets).mean().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        rates.step()
    return _subject(config, model, data)


def _load(config: Config) -> Data:
    return load_data(
        config.data, config.view, seed=config.seed, device=CPU, batch_size=config.train.batch_size
    )


def _build(config: Config, data: Data) -> nn.Module:
    return build_model(
        config.model, num_classes=data.num_classes, input_shape=data.input_shape, seed=config.seed
    )


def _subject(config: Config, model: nn.Module, data: Data) -> Subject:
    count = min(MOST, data.score.num_examples)
    inputs, targets = data.score.batch(np.arange(data.score.num_examples - count, data.score.num_examples), 0)
    return Subject(config.model.name, config, model.eval().requires_grad_(False), inputs, targets)
