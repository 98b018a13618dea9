"""Small jobs for the tests of other people's loops: losses that tell ids, and what the engine was told."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

from sbpipe.trainer.checkpoint_file import thawed
from sbpipe.trainer.engine import Engine
from support.own_loops import LINK

INLINE = {"mode": "inline", **LINK}
ALONE = {"mode": "pipelined", **LINK}
"""With `selector=None`: nobody scores, and the loop goes on all the same."""


class Numbered(Dataset[dict[str, torch.Tensor]]):
    """Points labelled with their own ids, as transformers wants them."""

    def __init__(self, num_examples: int = 256) -> None:
        generator = torch.Generator().manual_seed(0)
        self.points = torch.randn(num_examples, 8, generator=generator)

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, example_id: int) -> dict[str, torch.Tensor]:
        return {"points": self.points[example_id], "labels": torch.tensor(float(example_id))}


class Net(nn.Module):
    """One value for each point; takes what transformers gives a model that minds accumulation itself."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, points: torch.Tensor, labels: Any = None, **_: Any) -> torch.Tensor:
        values: torch.Tensor = self.layers(points)
        return values[:, 0]


def id_losses(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Losses that tell which examples they are of."""
    return model(batch["points"]) * 0 + batch["labels"]


def square_losses(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return (model(batch["points"]) - batch["points"].sum(dim=1)).square()


class Told:
    """The ids and the fresh losses of every train batch that the engine was told of."""

    def __init__(self) -> None:
        self.ids: list[np.ndarray[Any, Any]] = []
        self.losses: list[np.ndarray[Any, Any]] = []

    @property
    def are_paired(self) -> bool:
        """Whether each loss is that of its example, where losses are ids."""
        pairs = zip(self.ids, self.losses, strict=True)
        return bool(self.ids) and all(np.array_equal(ids, losses) for ids, losses in pairs)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    told, take = Told(), Engine.take_losses

    def take_losses(self: Engine, batch: Any, losses: torch.Tensor, targets: torch.Tensor) -> Any:
        told.ids.append(batch.example_ids)
        told.losses.append(losses.cpu().numpy())
        return take(self, batch, losses, targets)

    monkeypatch.setattr(Engine, "take_losses", take_losses)
    return told


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that were not told where to go are left here."""
    monkeypatch.chdir(tmp_path)


@contextmanager
def gradients_of(optimizer: torch.optim.Optimizer) -> Iterator[list[torch.Tensor]]:
    """The gradient at each step, as one vector."""
    found: list[torch.Tensor] = []

    def note(*_: Any) -> None:
        parameters = (each for group in optimizer.param_groups for each in group["params"])
        found.append(torch.cat([each.grad.flatten().clone() for each in parameters]))

    hook = optimizer.register_step_post_hook(note)
    yield found
    hook.remove()


def weights_of(model: nn.Module) -> torch.Tensor:
    return torch.cat([each.detach().flatten().clone() for each in model.parameters()])


def ledger_in(state: dict[str, Any]) -> tuple[int, int]:
    """Of a loader's state: candidates considered, and the places that the line has come to."""
    ledger = thawed(state["sbpipe"])["engine"]["stream"]["ledger"]
    pending = sum(last - first for first, last in ledger["pending"])
    return ledger["counts"][0], ledger["next_place"] - pending
