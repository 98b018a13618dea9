"""Losses that tests name in settings."""

import torch
from torch import Tensor
from torch.nn import functional


def dealt_to_others(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy; without gradients, as candidates are scored, each gets the loss of another one."""
    losses = functional.cross_entropy(outputs, targets.long(), reduction="none")
    return losses if torch.is_grad_enabled() else losses.roll(len(losses) // 2)
