"""The test error, loss and per-class error. Reads the model in evaluation mode; changes nothing."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from sbpipe.data import Split
from sbpipe.data.tree_split import TreeSplit
from sbpipe.machine.layout import laid_out, layout_of
from sbpipe.models.calling import called
from sbpipe.models.losses import PerExampleLoss
from sbpipe.models.metrics import Metric


@dataclass(frozen=True)
class Evaluation:
    """The result of one pass over the test split; `error` is top-1, None where targets are not classes.

    `metric` is the mean of the user's own metric, whose name is `metric_name`; None where there is none.
    `is_finite`: at least one test example has a finite loss. If none has, the run has diverged.
    """

    error: float | None
    loss: float
    class_errors: list[float] = field(default_factory=list)
    is_finite: bool = True
    metric: float | None = None
    metric_name: str | None = None


@torch.inference_mode()
def evaluate(
    model: nn.Module,
    loss: PerExampleLoss,
    test: Split | TreeSplit,
    *,
    batch_size: int,
    num_classes: int,
    metric: Metric | None = None,
    goes_on: Callable[[], bool] = lambda: True,
) -> Evaluation | None:
    """Top-1 error and mean loss on the test split; None if `goes_on`, asked before each batch, said no."""
    was_training, layout = model.training, layout_of(model)
    model.eval()
    wrong, seen = np.zeros(num_classes, np.int64), np.zeros(num_classes, np.int64)
    loss_sum = metric_sum = 0.0
    is_classes, is_finite = True, False
    for start in range(0, test.num_examples, batch_size):
        if not goes_on():
            model.train(was_training)
            return None
        ids = np.arange(start, min(start + batch_size, test.num_examples))
        inputs, targets = test.batch(ids, 0)
        outputs = called(model, inputs, layout)
        losses = loss(outputs, targets)
        loss_sum += float(losses.sum())
        metric_sum += float(metric(outputs, targets).sum()) if metric else 0.0
        is_finite = is_finite or bool(losses.isfinite().any())
        is_classes = is_classes and are_classes(outputs, targets, num_classes)
        if is_classes:
            answers, truth = outputs.argmax(1).cpu().numpy(), targets.cpu().numpy()
            seen += np.bincount(truth, minlength=num_classes)
            wrong += np.bincount(truth[answers != truth], minlength=num_classes)
    model.train(was_training)
    found = Evaluation(
        float(wrong.sum() / seen.sum()) if is_classes else None,
        loss_sum / test.num_examples,
        (wrong / np.maximum(seen, 1)).round(6).tolist() if is_classes else [],
        is_finite,
    )
    if metric is None:
        return found
    return replace(found, metric=metric_sum / test.num_examples, metric_name=metric.name)


def are_classes(outputs: Any, targets: Any, num_classes: int) -> bool:
    """Whether the outputs are one number per class and the targets are classes."""
    return (
        isinstance(outputs, torch.Tensor)
        and isinstance(targets, torch.Tensor)
        and targets.ndim == 1
        and not targets.is_floating_point()
        and outputs.ndim == 2
        and outputs.shape[1] >= num_classes > 0
    )


@torch.inference_mode()
def answers(
    model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The class of each example and the one the model gives it; -1 where there are no classes."""
    was_training = model.training
    outputs = model.eval()(laid_out(inputs, layout_of(model)))
    model.train(was_training)
    unknown = np.full(len(inputs), -1, np.int64)
    is_classes = targets.ndim == 1 and not targets.is_floating_point()
    given = outputs.argmax(1).cpu().numpy() if outputs.ndim == 2 and is_classes else unknown
    return targets.cpu().numpy().astype(np.int64) if is_classes else unknown, given
