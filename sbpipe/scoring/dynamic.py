"""Linear layers in integers inside a model that cannot be traced: transformers, mostly. Knows no loss.

The model runs as it is, on a copy of its modules that shares all parameters and buffers; its large linear
layers are replaced by ones that round their weights once per snapshot and their inputs at every call.
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from sbpipe.scoring.int8 import Int8Linear, Quantise, Range, is_available
from sbpipe.scoring.programs import Watched

_LEAST = 64 * 64
"""Weights of the smallest layer that is worth it: below, rounding costs more than the product."""


class DynamicLinear(nn.Module):
    """A linear layer whose input is rounded to its own span at every call."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self._span = Range()
        self._layer = Int8Linear(linear, self._span)
        self._num_outputs = linear.out_features

    def refresh(self) -> None:
        """Take the weight as it is now."""
        self._layer.refresh()

    def forward(self, values: Tensor) -> Tensor:
        """The layer's result in floating point."""
        rows = values.reshape(-1, values.shape[-1]).float()
        low, high = torch.aminmax(rows)
        self._span.low = self._span.high = 0.0  # no memory: each call has its own span
        self._span.see(float(low), float(high))
        done: Tensor = self._layer(Quantise(self._span)(rows))
        return done.view(*values.shape[:-1], self._num_outputs)


class DynamicProgram:
    """A model called as its user calls it; raises ValueError where it has nothing to gain."""

    def __init__(self, model: nn.Module) -> None:
        if not is_available():
            raise ValueError("this CPU, or this build of PyTorch, has no integer kernels")
        self._watched = Watched(model)
        shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
        self._run: nn.Module = copy.deepcopy(model, shared)
        self._layers: list[DynamicLinear] = []
        for parent in list(self._run.modules()):
            for name, child in list(parent.named_children()):
                # A subclass may be called otherwise than by its forward pass.
                if type(child) is nn.Linear and child.weight.numel() >= _LEAST:
                    self._layers.append(DynamicLinear(child))
                    setattr(parent, name, self._layers[-1])
        if not self._layers:
            raise ValueError("it has no large linear layer")
        self.notes: list[str] = []

    def refresh(self) -> bool:
        """Quantise and pack the weights that moved; whether all are finite."""
        for layer in self._layers:
            layer.refresh()
        return self._watched.is_finite()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The outputs."""
        return self._run(*args, **kwargs)
