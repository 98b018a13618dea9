"""A user's own metric of the test set, `eval.metric`: one value per example, reported as their mean.

It must not know when it is measured, nor the loss.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from sbpipe.config import EvalConfig
from sbpipe.config.plugins import import_plugin
from sbpipe.errors import ModelError


@dataclass(frozen=True)
class Metric:
    """A function with its name."""

    name: str
    function: Callable[..., Any]

    def __call__(self, outputs: Any, targets: torch.Tensor) -> torch.Tensor:
        """The values of a batch; ModelError unless there is one for each example."""
        try:
            values = self.function(outputs, targets)
        except (RuntimeError, ValueError, TypeError, IndexError, KeyError, AttributeError) as error:
            raise ModelError(
                f"eval.metric: {self.name} cannot be computed ({type(error).__name__}: {error}). It is "
                "called with the outputs and the targets of a batch, and must take both"
            ) from error
        if not isinstance(values, torch.Tensor) or values.shape != (len(targets),):
            got = list(values.shape) if isinstance(values, torch.Tensor) else type(values).__name__
            raise ModelError(
                f"eval.metric: {self.name} returned {got} for {len(targets)} examples. Return a tensor with "
                "one value per example; the mean is taken over the whole test set"
            )
        return values.double()


def build_metric(config: EvalConfig) -> Metric | None:
    """The metric that the settings name; None if they name none."""
    if not config.metric:
        return None
    function = import_plugin("eval.metric", config.metric)
    name = str(getattr(function, "__name__", ""))
    return Metric(name if name.isidentifier() else "metric", function)
