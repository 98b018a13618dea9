"""Calls a model with a batch's inputs: one tensor, several in order, or a dict by keyword.

It must not know where batches come from.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from sbpipe.config import LossConfig
from sbpipe.machine.layout import laid_out, layout_of
from sbpipe.models.losses import build_loss
from sbpipe.models.stand_in import Losses


def called(model: Callable[..., Any], inputs: Any, layout: torch.memory_format) -> Any:
    """The model's outputs; images get the model's memory format first."""
    if isinstance(inputs, torch.Tensor):
        return model(laid_out(inputs, layout))
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, (tuple, list)) else model(inputs)


def pair_losses(config: LossConfig) -> Losses:
    """The configured loss of batches (inputs, targets), as a function of model and batch."""
    loss = build_loss(config)

    def losses(model: Any, batch: Any) -> torch.Tensor:
        return loss(called(model, batch[0], layout_of(model)), batch[1])

    return losses
