"""Integer linear layers inside a model that is called unchanged: mostly transformers. Knows no loss.

The program is a copy of the modules that shares all parameters and buffers. Its large linear layers are
replaced by ones that quantise their weights once per snapshot and their inputs at every call. All else
computes in single precision on a CPU, and under half-precision autocast on an accelerator: there integer
layers beside single precision would gain nothing.
"""

import copy
from typing import Any, TypeAlias, TypeGuard

import torch
from torch import Tensor, nn

from sbpipe.scoring import products
from sbpipe.scoring.int8 import Int8Linear, Quantise, Range, is_available
from sbpipe.scoring.products import ProductLinear
from sbpipe.scoring.programs import Watched

_LEAST = 64 * 64
"""The fewest weights for which it pays: below, quantising costs more than the product saves."""


class DynamicLinear(nn.Module):
    """A linear layer on a CPU whose input is quantised to its own range at every call."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self._span = Range()
        self._layer = Int8Linear(linear, self._span)
        self._num_outputs = linear.out_features

    def refresh(self) -> None:
        """Take the present weight."""
        self._layer.refresh()

    def forward(self, values: Tensor) -> Tensor:
        """The layer's result in floating point."""
        rows = values.reshape(-1, values.shape[-1]).float()
        low, high = torch.aminmax(rows)
        self._span.low = self._span.high = 0.0  # reset: each call has its own range
        self._span.see(float(low), float(high))
        done: Tensor = self._layer(Quantise(self._span)(rows))
        return done.view(*values.shape[:-1], self._num_outputs)


Layer: TypeAlias = DynamicLinear | ProductLinear


class DynamicProgram:
    """A model called as its user calls it; raises ValueError where integers gain nothing."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._device = next(iter(model.parameters()), torch.empty(0)).device
        reason = _why_not(model, self._device)
        if reason is not None:
            raise ValueError(reason)
        self._watched = Watched(model)
        shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
        self._run: nn.Module = copy.deepcopy(model, shared)
        self._layers: list[Layer] = []
        for parent in list(self._run.modules()):
            for name, child in list(parent.named_children()):
                if is_large(child, self._device):
                    self._layers.append(_layer_of(child, self._device))
                    setattr(parent, name, self._layers[-1])
        self.notes: list[str] = []

    def refresh(self) -> bool | Tensor:
        """Quantise and pack the weights that moved; whether all are finite."""
        for layer in self._layers:
            layer.refresh()
        return self._watched.is_finite()

    def calibrate(self, inputs: Tensor) -> Tensor | None:
        """There is nothing to learn."""
        outputs: Tensor = self._model(inputs)
        return outputs

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The outputs."""
        with torch.autocast(self._device.type, torch.float16, enabled=self._device.type != "cpu"):
            return self._run(*args, **kwargs)


def is_large(module: nn.Module, device: torch.device) -> TypeGuard[nn.Linear]:
    """Whether a module is a linear layer that is large enough, and that the device's kernel supports."""
    # A subclass may compute something else.
    if type(module) is not nn.Linear or module.weight.numel() < _LEAST:
        return False
    return device.type == "cpu" or products.fits(module)


def _layer_of(linear: nn.Linear, device: torch.device) -> Layer:
    return DynamicLinear(linear) if device.type == "cpu" else ProductLinear(linear)


def _why_not(model: nn.Module, device: torch.device) -> str | None:
    """Why a model gains nothing from integers on a device; None if it may."""
    large = sum(module.weight.numel() for module in model.modules() if is_large(module, device))
    if device.type == "cpu":
        if not is_available():
            return "this CPU, or this build of PyTorch, has no integer kernels"
        return None if large else "it has no large linear layer"
    if (reason := products.why_not(device)) is not None:
        return reason
    convolved = sum(
        module.weight.numel() for module in model.modules() if isinstance(module, nn.modules.conv._ConvNd)
    )
    if large > convolved:
        return None
    if convolved:
        return f"PyTorch has no integer convolutions for {device.type}, and they hold most of its weights"
    return f"it has no linear layer of {_LEAST:,} weights or more whose sides are multiples of 8"
