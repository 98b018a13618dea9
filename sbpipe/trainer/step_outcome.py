"""What one train step gave: its batch, fresh losses and class counts, copied to the host once for everybody.

Steering, telemetry and the check for finite losses all look at it; on an accelerator they look one step late,
when the copy has arrived, so that nobody waits for the device. It knows neither stream nor model.
"""

import math
from collections.abc import Callable
from functools import cached_property

import torch

from sbpipe.errors import UserError
from sbpipe.machine.copies import Downloads
from sbpipe.records import Floats, Ids, TrainBatch
from sbpipe.trainer.steering.health import Health

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
        self,
        batch: TrainBatch,
        losses: torch.Tensor,
        targets: torch.Tensor,
        count_classes: CountClasses,
        *,
        weights: torch.Tensor | None = None,
        downloads: Downloads | None = None,
    ) -> None:
        """`weights` are those of the examples, where they were computed on the device."""
        self.batch = batch
        self.is_here = losses.device.type == "cpu"
        """Whether its numbers are at hand without waiting for a device."""
        self._has_weights = weights is not None
        told = [losses, targets] if weights is None else [losses, targets, weights]
        self._arrival = None if self.is_here else (downloads or Downloads(losses.device))(told)
        self._told = told if self.is_here else []
        self._count_classes = count_classes
        self.health: Health | None = None
        """What steering made of it; None until it has looked."""

    @property
    def has_come(self) -> bool:
        """Whether to ask it now waits for nothing: a matter of time, on which no number may depend."""
        return self._arrival is None or self._arrival.is_here

    def _arrived(self) -> list[torch.Tensor]:
        if self._arrival is not None:
            self._told, self._arrival = self._arrival.wait(), None
        return self._told

    @cached_property
    def losses(self) -> Floats:
        """The fresh loss of each example."""
        losses: Floats = self._arrived()[0].float().numpy()
        return losses

    @property
    def weights(self) -> Floats | None:
        """What each example counted, where that was decided on the device."""
        return self._arrived()[2].numpy() if self._has_weights else None

    @cached_property
    def mean_loss(self) -> float:
        """What the step minimised, before any weights."""
        return float(self.losses.mean())

    @cached_property
    def class_counts(self) -> list[int]:
        """How many examples of the batch are of each class; [] where there are no classes."""
        return self._count_classes(self.batch.example_ids, self._arrived()[1])

    def check(self) -> None:
        """Raise if the run has diverged."""
        if not math.isfinite(self.mean_loss):
            raise DivergedError(f"the training loss is {self.mean_loss}", self.batch.step)
