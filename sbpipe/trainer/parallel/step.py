"""One step shared by several replicas, and the split that loads a share. Knows the group, not the run."""

from typing import Any

import numpy as np
import torch
from torch import nn

from sbpipe.config import Config
from sbpipe.models.losses import PerExampleLoss
from sbpipe.records import Ids
from sbpipe.runs.spans import Spans
from sbpipe.trainer.parallel.group import Group
from sbpipe.trainer.serving.feed import Examples
from sbpipe.trainer.step import TrainStep, Weigh


class ParallelStep(TrainStep):
    """Forward and backward on this replica's share of the batch; gradients are averaged over all."""

    def __init__(
        self,
        config: Config,
        model: nn.Module,
        loss: PerExampleLoss,
        optimizer: torch.optim.Optimizer,
        spans: Spans,
        group: Group,
    ) -> None:
        super().__init__(config, model, loss, optimizer, spans)
        self._group = group
        self._is_wrapped = False
        self._purpose = (
            f"step {group.place.rank}" if group.place.rank else "step"
        )  # dropout must not repeat in every share

    def __call__(
        self,
        step: int,
        progress: float,
        inputs: torch.Tensor,
        targets: torch.Tensor,
        weigh: Weigh | None = None,
    ) -> torch.Tensor:
        """Train on this replica's share; its losses stand for the batch's, which only pictures read."""
        if self._group.place.rank == 0:
            self._group.tell(step, progress)
        if not self._is_wrapped:
            # Not before the first step: wrapping hands the first replica's weights to all, and a resumed run
            # has loaded them by now.
            self.forward, self._is_wrapped = self._group.wrap(self.model), True
        return (
            super()
            .__call__(step, progress, inputs, targets, weigh)
            .repeat_interleave(self._group.place.world)
        )


class SharedSplit:
    """The first replica's training split: tells the others what comes next, and loads its own share."""

    def __init__(self, split: Examples, group: Group) -> None:
        self._split = split
        self._group = group

    def batch(self, example_ids: Ids, epochs: int | Ids) -> tuple[Any, torch.Tensor]:
        """This replica's share of these examples."""
        epoch_of_each = np.broadcast_to(np.asarray(epochs, np.int64), example_ids.shape)
        self._group.order(example_ids, epoch_of_each)
        return self._split.batch(self._group.own(example_ids), self._group.own(epoch_of_each))
