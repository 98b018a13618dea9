"""A module and a Trainer of Lightning for tests; their import is slow."""

from pathlib import Path
from typing import Any

import torch
from pytorch_lightning import Callback, LightningModule, Trainer

from sbpipe.lightning import Selection
from sbpipe.ownloop.loader import SelectedLoader
from support.clients import Net


class Module(LightningModule):
    def __init__(self, losses: Any) -> None:
        super().__init__()
        self.net, self.losses = Net(), losses
        self.optimizer: Any = None

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        values: torch.Tensor = self.net(points)
        return values

    def training_step(self, batch: Any) -> torch.Tensor:
        loss: torch.Tensor = self.trainer.train_dataloader.weigh(self.losses(self, batch))
        return loss

    def configure_optimizers(self) -> Any:
        return self.optimizer or torch.optim.SGD(self.parameters(), 0.05, momentum=0.9)


def trainer_of(
    path: Path, loader: SelectedLoader, callbacks: list[Callback] | None = None, **arguments: Any
) -> Trainer:
    return Trainer(
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=bool(callbacks),
        default_root_dir=str(path),
        accumulate_grad_batches=loader.accumulate,
        callbacks=[Selection(loader), *(callbacks or [])],
        **arguments,
    )
