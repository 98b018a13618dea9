"""Loops of a user's own for tests: the job of `sbpipe run` in a loop outside it, and small jobs of other
make.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import sbpipe
from sbpipe.config import Config
from sbpipe.machine.layout import laid_out, layout_of
from sbpipe.models.losses import cross_entropy
from sbpipe.ownloop.loader import SelectedLoader
from sbpipe.trainer.schedule import rate_factor, set_rate
from sbpipe.trainer.setup import Setup, prepare
from sbpipe.weights.manifest import digest
from support.runs import SMALL

LINK = {key: value for key, value in SMALL.items() if key.startswith("link.")}
"""Patience for a busy machine."""


def image_losses(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    inputs, targets = batch
    return cross_entropy(model(laid_out(inputs, layout_of(model))), targets)


def loader_of(setup: Setup, path: Path, **settings: Any) -> SelectedLoader:
    """The job of a setup, as its user would give it to `sbpipe.select`."""
    config = setup.config
    inputs, targets = setup.data.train.batch(np.arange(setup.data.train.num_examples), 0)
    data = DataLoader(TensorDataset(inputs, targets), config.train.batch_size)
    given: dict[str, Any] = {
        "mode": config.mode,
        "seed": config.seed,
        "selection.policy": config.selection.policy,
        "selection.late": config.selection.late,
        "selection.ramp": config.selection.ramp,
        "selection.history": config.selection.history,
        "sync.lag": config.sync.lag,
        "sync.interval": config.sync.interval,
        **LINK,
        **settings,
    }
    step = setup.train_step
    return sbpipe.select(
        data,
        step.model,
        step.optimizer,
        losses=image_losses,
        keep=config.selection.keep,
        run_dir=path,
        settings=given,
    )


def train(loader: SelectedLoader, setup: Setup, num_steps: int, first: int = 0) -> None:
    """Train as `sbpipe run` does, in a loop that knows nothing of it."""
    config, optimizer, done = setup.config, setup.train_step.optimizer, first
    while done < num_steps:
        for batch in loader:
            factor = rate_factor(config.schedule, (done + 0.5) / config.train.steps)
            set_rate(optimizer, config.optim.lr, factor)
            setup.train_step.model.train()
            loss = loader.weigh(image_losses(setup.train_step.model, batch))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            done += 1
            if done == num_steps:
                return


def own_digest(config: Config, path: Path, **settings: Any) -> str:
    """The weights after the whole run in a loop of the user's own."""
    setup = prepare(config)
    with loader_of(setup, path, **settings) as loader:
        train(loader, setup, config.train.steps)
    return digest(setup.train_step.model)


def vectors(num_examples: int = 512, width: int = 16, num_classes: int = 4) -> TensorDataset:
    """Clouds of points, one for each class."""
    generator = torch.Generator().manual_seed(0)
    targets = torch.arange(num_examples) % num_classes
    centres = 2.0 * torch.randn(num_classes, width, generator=generator)
    return TensorDataset(centres[targets] + torch.randn(num_examples, width, generator=generator), targets)


def small_net(width: int = 16, num_classes: int = 4) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(width, 32), nn.ReLU(), nn.Linear(32, num_classes))


def pair_losses(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


def selected(
    dataset: Any,
    model: nn.Module,
    path: Path,
    *,
    losses: Callable[[Any, Any], torch.Tensor] = pair_losses,
    batch_size: int = 32,
    mode: str = "inline",
    collate: Any = None,
    workers: int = 0,
    **arguments: Any,
) -> tuple[SelectedLoader, torch.optim.Optimizer]:
    """A loader and its optimizer."""
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    settings = {"mode": mode, **LINK, **arguments.pop("settings", {})}
    data = DataLoader(dataset, batch_size, collate_fn=collate, num_workers=workers)
    arguments.setdefault("keep", 0.25)
    loader = sbpipe.select(
        data, model, optimizer, losses=losses, run_dir=path, settings=settings, **arguments
    )
    return loader, optimizer


def take_steps(
    loader: SelectedLoader, optimizer: torch.optim.Optimizer, losses: Any, num_steps: int
) -> list[float]:
    """Train for so many optimizer steps; the losses."""
    seen: list[float] = []
    while len(seen) < num_steps:
        for batch in loader:
            loss = loader.weigh(losses(loader.model, batch))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen.append(loss.item())
            if len(seen) == num_steps:
                break
    return seen
