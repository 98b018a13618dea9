"""Residuals: the direction and the distance in which the model's outputs are wrong for each example.

The residual of an example is the gradient of its loss at the model's outputs: softmax - onehot for cross
entropy, the signed error for squares. It needs no backward pass through the model, which nothing here knows.
"""

import math
from collections.abc import Callable
from functools import lru_cache, partial
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from sbpipe import randomness
from sbpipe.config import LossConfig
from sbpipe.models.losses import PerExampleLoss, build_loss

MOST_AXES = 128
"""Longer residuals go through a fixed random projection to this length; distances are kept to about 10 %."""

Residual: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""From the outputs and targets of N examples to N rows, one residual each."""


def build_residual(config: LossConfig) -> Residual:
    """The residual of the configured loss: in closed form if there is one, else by autograd."""
    if config.name == "cross_entropy":
        return partial(_of_cross_entropy, label_smoothing=config.label_smoothing)
    return partial(_by_autograd, build_loss(config))


def _of_cross_entropy(outputs: Tensor, targets: Tensor, *, label_smoothing: float) -> Tensor:
    """softmax - smoothed onehot for logits [N, classes] and classes [N]; other shapes go through autograd."""
    if outputs.dim() != 2 or targets.dim() != 1 or targets.is_floating_point():
        loss = partial(functional.cross_entropy, reduction="none", label_smoothing=label_smoothing)
        return _by_autograd(loss, outputs, targets)
    return closed_form(outputs, targets, label_smoothing=label_smoothing)


def closed_form(outputs: Tensor, targets: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
    """The residuals of cross entropy, for logits [N, classes] and classes [N]."""
    residuals = functional.softmax(outputs.float(), dim=1)
    residuals -= label_smoothing / outputs.shape[1]
    right = targets.long()[:, None]
    residuals.scatter_add_(1, right, residuals.new_full(right.shape, label_smoothing - 1.0))
    return projected(residuals)


def _by_autograd(loss: PerExampleLoss, outputs: Tensor, targets: Tensor) -> Tensor:
    """The gradient of the summed losses at the outputs; examples do not mix, so each row is its example's."""
    # A scorer runs in inference mode, whose tensors autograd refuses; clones are ordinary tensors.
    with torch.inference_mode(False), torch.enable_grad():
        leaf = outputs.detach().clone().float().requires_grad_()
        (gradient,) = torch.autograd.grad(loss(leaf, targets.clone()).sum(), leaf)
    return projected(gradient.flatten(1))


def projected(residuals: Tensor) -> Tensor:
    """Rows [..., width] of at most `MOST_AXES` numbers each."""
    width = residuals.shape[-1]
    return residuals if width <= MOST_AXES else residuals @ _projection(width).to(residuals.device)


@lru_cache(maxsize=2)
def _projection(width: int) -> Tensor:
    """Hashed signs, scaled so that squared lengths are kept on average (Achlioptas 2003)."""
    places = torch.arange(width * MOST_AXES, dtype=torch.int64)
    signs: Tensor = (randomness.mix(places, randomness.key(0, "projection")) & 1).float().mul_(2.0).sub_(1.0)
    return signs.view(width, MOST_AXES) / math.sqrt(MOST_AXES)
