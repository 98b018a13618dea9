"""A job that notes which examples each rank trains on: its targets are ids, and its loss keeps them.

Its numbers are multiples of powers of two whose sums are exact in any order: two ranks compute what one does,
bit for bit, so that even policies that deal by the bits of scores can be compared.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from sbpipe.config import Config, resolve
from sbpipe.data import load_data
from sbpipe.data.score_file import ScoreFile, write_scores
from sbpipe.machine.place import Place
from sbpipe.process import selector_settings
from support.ranked import PROCESSES, in_ranks, train_one
from support.runs import SMALL, select_for, train_inline

NUM, CLASSES, FEATURES = 128, 4, 4
_noted: list[list[int]] = []
"""The ids of each batch that this process trained on, in its present run."""
_REHEARSED = 2
"""Of these, the first: the rehearsal asks the loss twice, the second time whether it is cross entropy."""

Run = tuple[Config, Path]
Notes = list[list[int]]
"""The ids of each batch of a run, or of a rank's share of it."""

JOB: dict[str, Any] = {
    "data.name": "support.noted:data",
    "data.classes": NUM,
    "data.workers": 0,
    "model.name": "support.noted:model",
    "model.options": {},
    "loss.name": "support.noted:loss",
    "train.batch_size": 8,
    "train.steps": 6,
    "optim.lr": 2.0**-4,
    "optim.momentum": 0.5,
    "optim.weight_decay": 0.0,
    "schedule.name": "constant",
    "selector.precision": "fp32",
}


def noting(**changes: Any) -> Config:
    """The settings of this job with changes; `sync__interval` stands for `sync.interval`."""
    given = {key: value for key, value in SMALL.items() if not key.startswith("data.")} | JOB
    return resolve(given | {key.replace("__", "."): value for key, value in changes.items()})


def data() -> tuple[TensorDataset, TensorDataset]:
    """Vectors of small whole numbers, whose targets are their ids."""
    draw = np.random.default_rng(0)
    inputs = torch.from_numpy(draw.integers(-4, 5, (NUM, FEATURES)).astype(np.float32))
    return TensorDataset(inputs, torch.arange(NUM)), TensorDataset(inputs[:16], torch.arange(16))


def model(num_classes: int, input_shape: tuple[int, ...]) -> nn.Module:
    """One layer that begins with quarters."""
    made = nn.Linear(input_shape[0], CLASSES)
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randint(-2, 3, parameter.shape, generator=draw).float() / 4)
    return nn.Sequential(made)


def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The distance from one-hot classes, along the axes: its gradient at an output is a sign."""
    if outputs.grad_fn is not None:  # a pass through the model that is trained, not a score's own gradient
        _noted.append(targets.tolist())
    return (outputs - 4.0 * functional.one_hot(targets % CLASSES, CLASSES)).abs().sum(1)


def irreducible(path: Path) -> str:
    """A score file for policy `rho`."""
    config = noting(mode="inline", selection__policy="full")
    found = load_data(config.data, config.view, seed=config.seed, device=torch.device("cpu"), batch_size=8)
    write_scores(path, ScoreFile("irreducible", found.whole, np.linspace(0, 3, NUM, dtype=np.float32)))
    return str(path)


def note_alone(config: Config, path: Path) -> tuple[dict[str, Any], Notes]:
    """A run of one rank in this process, and what it trained on."""
    _noted.clear()
    summary = train_inline(config, path)
    return summary, _noted[_REHEARSED:]


def note_ranks(runs: Sequence[Run]) -> list[list[Notes]]:
    """Runs of as many ranks each, one after the other in the same processes; by run and rank, the notes.

    One more process is the selector of those that have one.
    """
    wired = [
        selector_settings(config) | {"link.connect": str(path)}
        for config, path in runs
        if not config.is_one_process
    ]
    selector = PROCESSES.Process(target=_select_all, args=(wired,), daemon=True)
    selector.start()
    try:
        by_rank = in_ranks(_note_all, list(runs), world=runs[0][0].num_ranks)
    finally:
        selector.kill()
    return [list(notes) for notes in zip(*by_rank, strict=True)]


def _select_all(given: list[dict[str, Any]]) -> None:
    for settings in given:
        select_for(settings)


def _note_all(place: Place, runs: list[Run]) -> list[Notes]:
    found = []
    for config, path in runs:
        _noted.clear()
        train_one(place, config, path)
        found.append(_noted[_REHEARSED:])
    return found
