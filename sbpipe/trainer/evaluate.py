"""The test error, loss and per-class error. Reads the model in evaluation mode; changes nothing."""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn

from sbpipe.data import Split
from sbpipe.layout import laid_out
from sbpipe.losses import PerExampleLoss


@dataclass(frozen=True)
class Evaluation:
    """What one pass over the test split found; `error` is top-1, None where targets are not classes."""

    error: float | None
    loss: float
    class_errors: list[float] = field(default_factory=list)


@torch.inference_mode()
def evaluate(model: nn.Module, loss: PerExampleLoss, test: Split, *, batch_size: int, num_classes: int) -> Evaluation:
    """Top-1 error and mean loss on the test split."""
    was_training = model.training
    model.eval()
    wrong, seen = np.zeros(num_classes, np.int64), np.zeros(num_classes, np.int64)
    loss_sum = 0.0
    is_classes = True
    for start in range(0, test.num_examples, batch_size):
        ids = np.arange(start, min(start + batch_size, test.num_examples))
        inputs, targets = test.batch(ids, 0)
        outputs = model(laid_out(inputs))
        loss_sum += float(loss(outputs, targets).sum())
        is_classes = is_classes and targets.ndim == 1 and not targets.is_floating_point() and outputs.ndim == 2
        if is_classes:
            answers, truth = outputs.argmax(1).cpu().numpy(), targets.cpu().numpy()
            seen += np.bincount(truth, minlength=num_classes)
            wrong += np.bincount(truth[answers != truth], minlength=num_classes)
    model.train(was_training)
    if not is_classes:
        return Evaluation(None, loss_sum / test.num_examples)
    per_class = (wrong / np.maximum(seen, 1)).round(6).tolist()
    return Evaluation(float(wrong.sum() / seen.sum()), loss_sum / test.num_examples, per_class)
