"""Losses: one float32 value per example, because selection needs each example's loss. Knows no model.

A loss is any callable `(outputs, targets) -> losses [N]`. Ours take a model's outputs for a batch of N, and
targets that are classes (whole numbers, [N]) or dense ([N, ...] like the outputs). `module:function` is the
user's own; `check_loss` tries it at step 0.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from sbpipe.config import LossConfig
from sbpipe.config.plugins import import_plugin, is_plugin
from sbpipe.errors import ModelError

PerExampleLoss: TypeAlias = Callable[[Any, Any], Tensor]


def cross_entropy(outputs: Tensor, targets: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
    """For logits [N, classes, ...] and classes [N, ...] or class probabilities; the mean over other axes."""
    targets = targets.float() if targets.is_floating_point() else targets.long()
    losses = functional.cross_entropy(
        outputs.float(), targets, reduction="none", label_smoothing=label_smoothing
    )
    return _mean_per_example(losses)


def mse(outputs: Tensor, targets: Tensor) -> Tensor:
    """The squared difference from dense or one-hot targets; the mean over all axes but the first."""
    return _mean_per_example((outputs.float() - _dense(targets, outputs)).square())


def bce(outputs: Tensor, targets: Tensor) -> Tensor:
    """Binary cross-entropy of logits, one per label, with 0/1 labels or classes; the mean over the labels."""
    losses = functional.binary_cross_entropy_with_logits(
        outputs.float(), _dense(targets, outputs), reduction="none"
    )
    return _mean_per_example(losses)


def gradient_norm(outputs: Tensor, targets: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
    """The norm of cross_entropy's gradient at the logits.

    Up to a common factor it bounds the norm of the whole gradient (see `kath18`).
    """
    probabilities = functional.softmax(outputs.float(), dim=1)
    wanted = _dense(targets, outputs)
    wanted = wanted * (1.0 - label_smoothing) + label_smoothing / outputs.shape[1]
    norms: Tensor = torch.linalg.vector_norm((probabilities - wanted).flatten(1), dim=1)
    return norms


LOSSES: dict[str, Callable[[LossConfig], PerExampleLoss]] = {
    "cross_entropy": lambda config: partial(cross_entropy, label_smoothing=config.label_smoothing),
    "mse": lambda _: mse,
    "bce": lambda _: bce,
}


def build_loss(config: LossConfig) -> PerExampleLoss:
    """The loss that `loss.name` asks for."""
    if is_plugin(config.name):
        return partial(_plugin_loss, import_plugin("loss.name", config.name))
    if config.name not in LOSSES:
        raise ModelError(
            f"loss.name = {config.name!r}: unknown loss. It is one of {', '.join(LOSSES)}, or module:function"
        )
    return LOSSES[config.name](config)


def build_score(config: LossConfig, by: str) -> PerExampleLoss:
    """The score of candidates: their loss, or the norm of its gradient."""
    return (
        build_loss(config) if by == "loss" else partial(gradient_norm, label_smoothing=config.label_smoothing)
    )


def check_loss(loss: PerExampleLoss, outputs: Any, targets: Any) -> Tensor:
    """The losses of a first batch; ModelError if they are unfit for selection or training."""
    want = next(
        (len(value) for value in (targets, outputs) if isinstance(value, Tensor) and value.dim()), None
    )
    try:
        losses: Any = loss(outputs, targets)
    except (RuntimeError, ValueError, TypeError, IndexError, KeyError, AttributeError) as error:
        given = f"outputs {_describe(outputs)} and targets {_describe(targets)}"
        raise ModelError(
            f"loss: cannot be computed from {given} ({type(error).__name__}: {error}). Choose one that fits "
            "what the model gives and the data holds"
        ) from error
    if not isinstance(losses, Tensor):
        raise ModelError(
            f"loss: returned a {type(losses).__name__}. Return a tensor with one value per example"
        )
    # A mean over the batch, [] or [1], would train without an error, but rank nothing.
    if losses.dim() != 1 or (want is not None and len(losses) != want):
        way_out = "One value per example is needed: reduction='none' is the usual fix"
        raise ModelError(
            f"loss: got shape {list(losses.shape)}, want shape [{'N' if want is None else want}]. {way_out}"
        )
    if not losses.is_floating_point():
        raise ModelError(f"loss: returned {losses.dtype}. Return floating-point numbers")
    if not torch.isfinite(losses).all():
        position = int((~torch.isfinite(losses)).nonzero()[0])
        way_out = "Check inputs and targets for NaN and for a scale that is far from 1"
        raise ModelError(
            f"loss: is {losses[position].item()} at position {position} of the first batch. {way_out}"
        )
    if not losses.requires_grad:
        way_out = "Compute it from the outputs with torch, without detach()"
        raise ModelError(f"loss: does not require grad, so nothing can be learnt from it. {way_out}")
    return losses


def _plugin_loss(function: Callable[..., Any], outputs: Any, targets: Any) -> Tensor:
    """The user's loss on float32 outputs; `check_loss` checks its result."""
    losses = function(_floats_as_float32(outputs), targets)
    return _floats_as_float32(losses)  # type: ignore[no-any-return]


def _floats_as_float32(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.is_floating_point() else value


def _mean_per_example(losses: Tensor) -> Tensor:
    return losses.flatten(1).mean(1) if losses.dim() > 1 else losses


def _dense(targets: Tensor, outputs: Tensor) -> Tensor:
    """Targets in the shape of the outputs. It never broadcasts: [N, 1] and [N] would become [N, N]."""
    if targets.shape == outputs.shape:
        return targets.float()
    if (*targets.shape, 1) == outputs.shape:
        return targets.float().unsqueeze(-1)
    if targets.dim() == 1 and outputs.dim() == 2 and not targets.is_floating_point():
        return functional.one_hot(targets.long(), outputs.shape[1]).float()
    raise ValueError(
        f"targets of shape {list(targets.shape)} do not fit outputs of shape {list(outputs.shape)}"
    )


def _describe(value: Any) -> str:
    return f"{list(value.shape)} {value.dtype}" if isinstance(value, Tensor) else type(value).__name__
