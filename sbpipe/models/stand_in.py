"""A stand-in for the model, passed to a user's `losses(model, batch)`, which records the model's outputs.

Its forward pass runs without gradients, but its outputs require them. So the residual, the gradient of each
example's loss at the outputs, is known without a backward pass through the model. It must not know who runs
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
"""The user's function from the model and a batch to one value per example."""
Forward: TypeAlias = Callable[..., Any]

_NEAR = 1e-3
"""A loss counts as cross entropy if softmax minus gradient is at most this far from one-hot rows."""


class Classified(NamedTuple):
    """The logits of a classifier trained by cross entropy, and the classes, which the gradient reveals."""

    logits: Tensor
    targets: Tensor


class StandIn(nn.Module):
    """Gives the model's outputs, through `forward_pass`, and keeps those of the last call of the losses.

    All its other attributes (parameters, methods, ...) are the model's.
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
        """The losses of a batch in float32; with gradients enabled, their graph goes back to the outputs."""
        self._outputs = []
        return losses(self, batch).float()

    def gradients(self, losses: Tensor) -> list[tuple[Tensor, Tensor]]:
        """The outputs that the losses depend on and that have a row per loss, with their gradients."""
        outputs, self._outputs = [each for each in self._outputs if len(each.shape)], []
        if not outputs or not losses.requires_grad:
            return []
        # Examples do not mix, so the gradient of the sum holds each example's gradient.
        found = torch.autograd.grad(losses.sum(), outputs, allow_unused=True)
        return [
            (output.detach(), gradient)
            for output, gradient in zip(outputs, found, strict=True)
            if gradient is not None and len(gradient) == len(losses)
        ]


def guessed(gradients: list[tuple[Tensor, Tensor]]) -> tuple[Classified, Tensor] | None:
    """A guess at logits and targets, and whether it is right: then the loss is plain cross entropy of one row
    of logits per example. None if it cannot be. Nothing here waits for a device.
    """
    if len(gradients) != 1 or gradients[0][0].dim() != 2 or gradients[0][0].shape[1] < 2:
        return None
    logits, gradient = gradients[0]
    one_hot = functional.softmax(logits, dim=1) - gradient
    targets = one_hot.argmax(dim=1)
    difference = one_hot.scatter_add_(1, targets[:, None], one_hot.new_full((len(targets), 1), -1.0))
    return Classified(logits, targets), difference.abs().max() < _NEAR


def classified(gradients: list[tuple[Tensor, Tensor]]) -> Classified | None:
    """Logits and targets, if the loss is plain cross entropy of one row of logits per example."""
    guess = guessed(gradients)
    return guess[0] if guess is not None and bool(guess[1]) else None


def is_cross_entropy(loss: PerExampleLoss, outputs: Any, targets: Any) -> bool:
    """Whether a loss is plain cross entropy of classes: by its gradient, as above, and by its values.

    Call it with outputs that the loss has accepted before: it may refuse others.
    """
    if not (isinstance(outputs, Tensor) and isinstance(targets, Tensor)):
        return False
    if outputs.dim() != 2 or targets.dim() != 1 or targets.is_floating_point():
        return False
    with torch.enable_grad():
        leaf = outputs.detach().float().requires_grad_()
        losses = loss(leaf.clone(), targets)  # a clone, since a loss may write into a model's outputs
        (gradient,) = torch.autograd.grad(losses.sum(), leaf, allow_unused=True)
    found = None if gradient is None else classified([(leaf.detach(), gradient)])
    if found is None or not torch.equal(found.targets, targets.long()):
        return False
    wanted = functional.cross_entropy(found.logits, found.targets, reduction="none")
    return torch.allclose(losses.detach(), wanted, rtol=_NEAR, atol=_NEAR)


def residuals_of(losses: Tensor, gradients: list[tuple[Tensor, Tensor]], known: Classified | None) -> Tensor:
    """One row per example; if no output has a row per example, the loss itself."""
    if known is not None:
        # With the same bits as in `sbpipe run`.
        return closed_form(known.logits, known.targets)
    rows = [_sketched(_sketched(gradient).flatten(1)) for _, gradient in gradients]
    return _sketched(torch.cat(rows, dim=1)) if rows else losses.detach()[:, None]


def _sketched(gradient: Tensor) -> Tensor:
    """The gradient with a shortened last axis (classes, a vocabulary, a whole row): each number is added,
    with a sign, to one of few places; both depend on its place only (count sketch, Charikar et al. 2002).

    Inner products are kept on average, and it needs no matrix as long as the axis.
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
