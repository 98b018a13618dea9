"""Integer linear layers on accelerators, by the only integer product that PyTorch has there.

A weight is a signed byte with a scale per output. An input is a signed byte with a scale per row, computed at
every call: there is no calibration, and the host reads nothing. Knows no graph.
"""

from functools import lru_cache

import torch
from torch import Tensor, nn

from sbpipe.scoring.int8 import PackedWeight

_LARGEST = 127
_SMALLEST_STEP = 1e-12
_MULTIPLE = 8
"""The kernels need sides that are multiples of this,"""
_LEAST_ROWS = 32
"""and more than 16 rows."""


@lru_cache(maxsize=8)
def why_not(device: torch.device) -> str | None:
    """Why a device has no integer product; None if it has."""
    try:
        # Zeros made on the device: only the product is tried, not conversions.
        bytes_ = torch.zeros(_LEAST_ROWS, _LEAST_ROWS, dtype=torch.int8, device=device)
        torch._int_mm(bytes_, bytes_.t()).sum().item()
    # A build without CUDA asserts; a device type without the kernel raises a RuntimeError.
    except (RuntimeError, AssertionError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        return f"PyTorch has no integer product for {device} (torch._int_mm: {reason})"
    return None


def fits(linear: nn.Linear) -> bool:
    """Whether the kernels support the sides of a layer."""
    return linear.in_features % _MULTIPLE == 0 and linear.out_features % _MULTIPLE == 0


class ProductLinear(nn.Module):
    """A linear layer that multiplies bytes, with a result of the input's type."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        # In a tuple, so that it is not registered: this module's state is derived, never saved or moved.
        self._linear = (linear,)
        self._packed = PackedWeight(linear)

    def refresh(self) -> None:
        """Take the present weight; the bias is read in place at every call."""
        self._packed.refresh(lambda rows, step: rows)

    def forward(self, values: Tensor) -> Tensor:
        """The layer's result."""
        rows = values.reshape(-1, values.shape[-1])
        step = rows.abs().amax(dim=1, keepdim=True).float().div_(_LARGEST).clamp_min_(_SMALLEST_STEP)
        quantised = torch.div(rows, step).round_().to(torch.int8)
        missing = _LEAST_ROWS - len(rows)
        if missing > 0:
            quantised = nn.functional.pad(quantised, [0, 0, 0, missing])
        products = torch._int_mm(quantised, self._packed.packed.t())[: len(rows)]
        done = products.float().mul_(step).mul_(self._packed.step)
        bias = self._linear[0].bias
        done = done if bias is None else done.add_(bias)
        return done.to(values.dtype).view(*values.shape[:-1], -1)
