"""The result of one train step: its batch, fresh losses and class counts, copied to the host once for all.

Steering, telemetry and the check for finite losses all read it. On an accelerator they read it one step late,
when the copy has arrived, so that the host never waits for the device. It knows neither stream nor model.
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
    """Losses are no longer finite: the same words and exit code wherever it is found and in every mode."""

    def __init__(self, what: str, step: int) -> None:
        super().__init__(f"the run has diverged: {what} at step {step}. {WAY_OUT}")


class StepOutcome:
    """The result of one step. Its copy to the host is started at once; reading a value waits
    for that copy.
    """

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
        """`weights` are those of the examples, if they were computed on the device."""
        self.batch = batch
        self.is_here = losses.device.type == "cpu"
        """Whether its numbers can be read without waiting for a device."""
        self._has_weights = weights is not None
        told = [losses, targets] if weights is None else [losses, targets, weights]
        self._arrival = None if self.is_here else (downloads or Downloads(losses.device))(told)
        self._told = told if self.is_here else []
        self._count_classes = count_classes
        self.health: Health | None = None
        """What steering found; None until it has read this step."""

    @property
    def has_come(self) -> bool:
        """Whether reading it now waits for nothing. Depends on timing, so no result may depend on it."""
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
        """The weight of each example, if it was computed on the device."""
        return self._arrived()[2].numpy() if self._has_weights else None

    @cached_property
    def mean_loss(self) -> float:
        """The mean loss of the batch, before any weights."""
        return float(self.losses.mean())

    @cached_property
    def class_counts(self) -> list[int]:
        """How many examples of the batch are of each class; [] where there are no classes."""
        return self._count_classes(self.batch.example_ids, self._arrived()[1])

    def check(self) -> None:
        """Raise if the run has diverged."""
        if not math.isfinite(self.mean_loss):
            raise DivergedError(f"the training loss is {self.mean_loss}", self.batch.step)
