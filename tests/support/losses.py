"""Losses that tests name in settings."""

import itertools
import threading

import torch
from torch import Tensor
from torch.nn import functional


def dealt_to_others(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy; without gradients, as candidates are scored, each gets the loss of another one."""
    losses = functional.cross_entropy(outputs, targets.long(), reduction="none")
    return losses if torch.is_grad_enabled() else losses.roll(len(losses) // 2)


_passes = itertools.count()


def stuck_on_rank_0(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy; rank 0 never comes out of its fifth pass that trains, as from a device that hangs."""
    if torch.is_grad_enabled() and not torch.distributed.get_rank() and next(_passes) == 4:
        threading.Event().wait()
    return functional.cross_entropy(outputs, targets.long(), reduction="none")
