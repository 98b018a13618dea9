"""A stand-in for the model, handed to a user's `losses(model, batch)`, that shows what the model answered.

Its forward pass runs without gradients, and its outputs require them: so the gradient of each example's loss
at the outputs, the residual, is known without a backward pass through the model. It must not know who runs
the forward pass, nor at which precision.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._pytree import tree_map_only

from sbpipe import randomness
from sbpipe.models.losses import PerExampleLoss
from sbpipe.models.residuals import MOST_AXES, closed_form

Losses: TypeAlias = Callable[[Any, Any], Tensor]
"""The user's: from the model and a batch to one value per example."""
Forward: TypeAlias = Callable[..., Any]

_NEAR = 1e-3
"""How far softmax less gradient may be from one-hot rows for a loss to be cross entropy."""


class Classified(NamedTuple):
    """The logits of a classifier trained by cross entropy, and the classes that the gradient betrays."""

    logits: Tensor
    targets: Tensor


class StandIn(nn.Module):
    """Answers as the model does, through `forward_pass`, and keeps the outputs of the last call of the
    losses.

    Everything else that is asked of it (parameters, attributes, methods) is the model's.
    """

    def __init__(self, model: nn.Module, forward_pass: Forward) -> None:
        super().__init__()
        self.stands_for = model
        self._forward_pass = forward_pass
        self._outputs: list[Tensor] = []
        self.eval()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The model's outputs, as leaves of a new graph."""
        with torch.no_grad():
            outputs = self._forward_pass(*args, **kwargs)
        return tree_map_only(Tensor, self._leaf, outputs)

    def _leaf(self, output: Tensor) -> Tensor:
        if not output.is_floating_point():
            return output
        leaf = output.detach().float().requires_grad_(torch.is_grad_enabled())
        self._outputs.append(leaf)
        return leaf

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("stands_for"), name)

    def evaluate(self, losses: Losses, batch: Any) -> Tensor:
        """The losses of a batch, float32; they hang on the outputs where gradients are enabled."""
        self._outputs = []
        return losses(self, batch).float()

    def gradients(self, losses: Tensor) -> list[tuple[Tensor, Tensor]]:
        """The outputs that the losses depend on and have a row for each of them, with their gradients."""
        outputs, self._outputs = [each for each in self._outputs if len(each.shape)], []
        if not outputs or not losses.requires_grad:
            return []
        # Examples do not mix, so the gradient of the sum holds each one's own.
        found = torch.autograd.grad(losses.sum(), outputs, allow_unused=True)
        return [
            (output.detach(), gradient)
            for output, gradient in zip(outputs, found, strict=True)
            if gradient is not None and len(gradient) == len(losses)
        ]


def guessed(gradients: list[tuple[Tensor, Tensor]]) -> tuple[Classified, Tensor] | None:
    """Logits and targets, and whether they are that: the loss is plain cross entropy of one row of logits per
    example. None where it cannot be. Nothing here waits for a device.
    """
    if len(gradients) != 1 or gradients[0][0].dim() != 2 or gradients[0][0].shape[1] < 2:
        return None
    logits, gradient = gradients[0]
    one_hot = functional.softmax(logits, dim=1) - gradient
    targets = one_hot.argmax(dim=1)
    difference = one_hot.scatter_add_(1, targets[:, None], one_hot.new_full((len(targets), 1), -1.0))
    return Classified(logits, targets), difference.abs().max() < _NEAR


def classified(gradients: list[tuple[Tensor, Tensor]]) -> Classified | None:
    """Logits and targets, where the loss is plain cross entropy of one row of logits per example."""
    guess = guessed(gradients)
    return guess[0] if guess is not None and bool(guess[1]) else None


def is_cross_entropy(loss: PerExampleLoss, outputs: Any, targets: Any) -> bool:
    """Whether a loss is plain cross entropy of classes: by its gradient, as above, and by its values.

    Asked with outputs that it has taken before: it may refuse others.
    """
    if not (isinstance(outputs, Tensor) and isinstance(targets, Tensor)):
        return False
    if outputs.dim() != 2 or targets.dim() != 1 or targets.is_floating_point():
        return False
    with torch.enable_grad():
        leaf = outputs.detach().float().requires_grad_()
        losses = loss(leaf.clone(), targets)  # what is no leaf may be written into, as a model's outputs may
        (gradient,) = torch.autograd.grad(losses.sum(), leaf, allow_unused=True)
    found = None if gradient is None else classified([(leaf.detach(), gradient)])
    if found is None or not torch.equal(found.targets, targets.long()):
        return False
    wanted = functional.cross_entropy(found.logits, found.targets, reduction="none")
    return torch.allclose(losses.detach(), wanted, rtol=_NEAR, atol=_NEAR)


def residuals_of(losses: Tensor, gradients: list[tuple[Tensor, Tensor]], known: Classified | None) -> Tensor:
    """One row per example; where no output has a row for each example, the loss itself."""
    if known is not None:
        # As `sbpipe run` computes it, to the bit.
        return closed_form(known.logits, known.targets)
    rows = [_sketched(_sketched(gradient).flatten(1)) for _, gradient in gradients]
    return _sketched(torch.cat(rows, dim=1)) if rows else losses.detach()[:, None]


def _sketched(gradient: Tensor) -> Tensor:
    """The last axis (classes, a vocabulary, a whole row) shortened: each number goes to one place of few,
    under a sign, both fixed by its own place (count sketch, Charikar et al. 2002).

    Inner products are kept on average, and no matrix as long as the axis is held.
    """
    if gradient.dim() < 2:
        return gradient[:, None]
    width = gradient.shape[-1]
    if width <= MOST_AXES:
        return gradient
    places, signs = (table.to(gradient.device) for table in _sketch(width))
    short = gradient.new_zeros((*gradient.shape[:-1], MOST_AXES))
    return short.index_add_(-1, places, gradient * signs)


@lru_cache(maxsize=8)
def _sketch(width: int) -> tuple[Tensor, Tensor]:
    bits = randomness.mix(torch.arange(width, dtype=torch.int64), randomness.key(0, "sketch"))
    return bits.remainder(MOST_AXES), (bits >> 40 & 1).float().mul_(2.0).sub_(1.0)
