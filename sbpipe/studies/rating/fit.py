"""Trains one model on some examples, and measures others with it. Knows no raters, files or kinds."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from sbpipe.config import Config
from sbpipe.data import Data, Order
from sbpipe.errors import ConfigError, ModelError
from sbpipe.machine.layout import laid_out, layout_of
from sbpipe.models import build_model
from sbpipe.models.losses import PerExampleLoss, build_loss, gradient_norm
from sbpipe.records import Floats, Ids
from sbpipe.runs.spans import Spans
from sbpipe.trainer.evaluation import are_classes
from sbpipe.trainer.optimizer import build_optimizer
from sbpipe.trainer.step import TrainStep

Tick = Callable[[], None]


def num_steps(epochs: float, num_examples: int, batch_size: int) -> int:
    """Whole batches in so many epochs, at least one."""
    return max(1, int(epochs * num_examples / batch_size))


def fit(
    config: Config, data: Data, train_ids: Ids, device: torch.device, *, seed: int, epochs: float, tick: Tick
) -> nn.Module:
    """A model trained on these examples only; the learning rate runs through its whole schedule."""
    batch_size = config.train.batch_size
    if len(train_ids) < batch_size:
        reason = f"the {len(train_ids)} examples that one model is trained on do not fill a batch"
        raise ConfigError("train.batch_size", batch_size, reason, f"Set it to at most {len(train_ids)}")
    model = build_model(
        config.model, num_classes=data.num_classes, input_shape=data.input_shape, seed=seed
    ).to(device)
    loss, optimizer = build_loss(config.loss), build_optimizer(config.optim, model)
    step = TrainStep(replace(config, seed=seed), model, loss, optimizer, Spans())
    order, steps = Order(len(train_ids), seed), num_steps(epochs, len(train_ids), batch_size)
    for number in range(steps):
        positions, epoch_of_each = along(order, number * batch_size, (number + 1) * batch_size)
        batch = data.train.batch(train_ids[positions], epoch_of_each)
        # Refuse a wrong loss or too little memory here, before minutes of training.
        if number == 0:
            step.rehearse(*batch)
        step(number, number / steps, *batch)
        tick()
    return model


def along(order: Order, start: int, stop: int) -> tuple[Ids, Ids]:
    """The positions at places [start, stop) of the endless line of epochs, and the epoch of each."""
    pieces, epochs, size = [], [], order.num_examples
    for epoch in range(start // size, (stop - 1) // size + 1):
        first, last = max(start - epoch * size, 0), min(stop - epoch * size, size)
        pieces.append(order.ids(epoch, first, last))
        epochs.append(np.full(last - first, epoch, np.int64))
    return np.concatenate(pieces), np.concatenate(epochs)


@torch.inference_mode()
def rate(
    model: nn.Module, data: Data, example_ids: Ids, measure: PerExampleLoss, *, batch_size: int, tick: Tick
) -> Floats:
    """The `measure` of each example in evaluation mode, on the views of data.score."""
    model.eval()
    layout, ratings = layout_of(model), []
    for start in range(0, len(example_ids), batch_size):
        inputs, targets = data.score.batch(example_ids[start : start + batch_size], 0)
        ratings.append(measure(model(laid_out(inputs, layout)), targets).float().cpu().numpy())
        tick()
    found: Floats = np.concatenate(ratings)
    if not np.isfinite(found).all():
        raise ModelError(
            "score: what the trained model says is not finite, so its training diverged. Lower optim.lr"
        )
    return found


def measure_of(kind: str, config: Config, num_classes: int) -> PerExampleLoss:
    """el2n = |softmax(outputs) - onehot| (Paul et al. 2021), irreducible = the trained loss."""
    if kind == "irreducible":
        return build_loss(config.loss)

    def el2n(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if not are_classes(outputs, targets, num_classes):
            raise ModelError(
                "score el2n: is defined for classifiers, and the targets here are no classes. Use score "
                "irreducible"
            )
        return gradient_norm(outputs, targets)

    return el2n
