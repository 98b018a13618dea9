"""Losses that tests name in settings."""

import contextlib
import itertools
import os
import threading
import time
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional


def dealt_to_others(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy; without gradients, as candidates are scored, each gets the loss of another one."""
    losses = functional.cross_entropy(outputs, targets.long(), reduction="none")
    return losses if torch.is_grad_enabled() else losses.roll(len(losses) // 2)


def in_slow_motion(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy; each pass that trains takes a moment longer while the file $SLOWLY is there."""
    if torch.is_grad_enabled() and "SLOWLY" in os.environ:
        with contextlib.suppress(FileNotFoundError):
            time.sleep(float(Path(os.environ["SLOWLY"]).read_text()))
    return functional.cross_entropy(outputs, targets.long(), reduction="none")


_passes = itertools.count()


def stuck_on_rank_0(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy; rank 0 never comes out of its fifth pass that trains, as from a device that hangs."""
    if torch.is_grad_enabled() and not torch.distributed.get_rank() and next(_passes) == 4:
        threading.Event().wait()
    return functional.cross_entropy(outputs, targets.long(), reduction="none")
