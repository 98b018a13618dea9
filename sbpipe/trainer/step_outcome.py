"""What one train step gave: its batch, fresh losses and class counts, copied to the host once for everybody.

Steering, telemetry and the check for finite losses all look at it; on an accelerator they look one step late,
when the copy has arrived, so that nobody waits for the device. It knows neither stream nor model.
"""

import math
from collections.abc import Callable
from functools import cached_property

import torch

from sbpipe.errors import UserError
from sbpipe.records import Floats, Ids, TrainBatch
from sbpipe.trainer.arrival import Arrival

WAY_OUT = "Lower optim.lr, or look for what is wrong with the data"

CountClasses = Callable[[Ids, torch.Tensor], list[int]]
"""From example ids and their targets to the number of examples of each class."""


class DivergedError(UserError):
    """Losses are no longer numbers: the same words and exit code, whoever finds it and in every mode."""

    def __init__(self, what: str, step: int) -> None:
        super().__init__(f"the run has diverged: {what} at step {step}. {WAY_OUT}")


class StepOutcome:
    """The result of one step; what is asked of it waits for the copy that was started when it was made."""

    def __init__(
        self, batch: TrainBatch, losses: torch.Tensor, targets: torch.Tensor, count_classes: CountClasses
    ) -> None:
        self.batch = batch
        self.is_here = losses.device.type == "cpu"
        """Whether its numbers are at hand without waiting for a device."""
        self._losses, self._targets = Arrival(losses), Arrival(targets)
        self._count_classes = count_classes

    @cached_property
    def losses(self) -> Floats:
        """The fresh loss of each example."""
        losses: Floats = self._losses.wait().float().numpy()
        return losses

    @cached_property
    def mean_loss(self) -> float:
        """What the step minimised, before any weights."""
        return float(self.losses.mean())

    @cached_property
    def class_counts(self) -> list[int]:
        """How many examples of the batch are of each class; [] where there are no classes."""
        return self._count_classes(self.batch.example_ids, self._targets.wait())

    def check(self) -> None:
        """Raise if the run has diverged."""
        if not math.isfinite(self.mean_loss):
            raise DivergedError(f"the training loss is {self.mean_loss}", self.batch.step)
