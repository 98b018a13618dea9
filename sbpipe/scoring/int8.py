"""Layers that compute in integers, on the oneDNN kernels that PyTorch ships for x86 CPUs. It must not know graphs or candidates.

An activation is an unsigned byte, x = scale (q - zero), with one scale for all of a value; a weight is a signed byte with a scale for each output
channel. A BatchNorm is folded into those channel scales and the bias alone, so that new normalisation statistics, which arrive at every
step, cost some vectors of arithmetic: only new weights are quantised and packed anew.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sbpipe.scoring.fused import FusedConv, has_onednn, max_pool

_LARGEST_WEIGHT = 127
_SMALLEST_STEP = 1e-12


def is_available() -> bool:
    """Whether this build of PyTorch on this CPU has integer kernels."""
    has_kernels = hasattr(torch.ops.onednn, "qconv2d_pointwise") and hasattr(torch.ops.onednn, "qlinear_pointwise")
    return has_onednn() and has_kernels and "AVX" in torch.backends.cpu.get_cpu_capability()


def _largest_activation() -> int:
    """Without VNNI instructions the kernels add two products in 16 bits, which 8-bit activations would overflow."""
    return 255 if torch.cpu._is_vnni_supported() else 127


@dataclass
class Range:
    """The span of a value, seen on real candidates; a new one widens it at once and narrows it by half."""

    low: float = 0.0
    high: float = 0.0
    scale: float = 1.0
    zero: int = 0

    def see(self, low: float, high: float) -> None:
        """Take in the span of some candidates."""
        is_first = self.low == self.high
        self.low = low if is_first or low < self.low else (self.low + low) / 2
        self.high = high if is_first or high > self.high else (self.high + high) / 2
        low, high = min(self.low, 0.0), max(self.high, 0.0)  # zero itself must be exact: convolutions pad with it
        self.scale = max((high - low) / _largest_activation(), _SMALLEST_STEP)
        self.zero = round(-low / self.scale)


class Quantise(nn.Module):
    """Floating point in, bytes out."""

    def __init__(self, span: Range) -> None:
        super().__init__()
        self.span = span

    def forward(self, values: Tensor) -> Tensor:
        """The nearest byte of each value, saturating."""
        scaled = torch.mul(values, 1.0 / self.span.scale).round_().add_(self.span.zero)
        return scaled.clamp_(0, _largest_activation()).to(torch.uint8)


class Dequantise(nn.Module):
    """Bytes in, floating point out."""

    def __init__(self, span: Range) -> None:
        super().__init__()
        self.span = span

    def forward(self, values: Tensor) -> Tensor:
        """What the bytes stand for."""
        return values.float().sub_(self.span.zero).mul_(self.span.scale)


class Int8Conv(nn.Module):
    """A fused convolution in integers. `out` is the span of its result; None = the result is floating point."""

    def __init__(self, fused: FusedConv, source: Range, out: Range | None, other: Range | None, *, owns_other: bool) -> None:
        super().__init__()
        self._fused = (fused,)
        self._source, self._out, self._other = source, out, other
        self._owns_other = owns_other
        self._place = (list(fused.stride), list(fused.padding), list(fused.dilation), fused.groups)
        self._activation = "none" if fused.cap is None else "relu"
        self._sign: Tensor | None = None
        self._step = self._packed = self._scale = self._bias = torch.empty(0)
        self._zeros = torch.zeros(fused.conv.out_channels, dtype=torch.long)

    @torch.no_grad()
    def refresh(self, *, whole: bool) -> None:
        """Take what the sources hold now; without `whole`, only what normalisation and biases bring."""
        if whole:
            self._step, quantised = quantised_rows(self._fused[0].conv.weight)
            self._packed = torch.ops.onednn.qconv_prepack(quantised, self._step, 1.0, 0, *self._place, None)
        scale, shift = self._fused[0].scale_and_shift()
        self._sign = None
        if scale is not None and self._fused[0].pool is not None and not bool((scale > 0).all()):
            self._sign, scale = torch.sign(scale), scale.abs()
        self._scale = self._step if scale is None else self._step * scale
        self._bias = torch.zeros_like(self._step) if shift is None else shift.detach().float()

    def forward(self, values: Tensor, other: Tensor | None = None) -> Tensor:
        """The chain's result; the sum is written into `other`, or into a copy of it where somebody still needs it."""
        if other is not None:
            return self._add_to(other if self._owns_other else other.clone(), values)
        pool = self._fused[0].pool
        if pool is None:
            return self._convolve(values, self._out, self._bias, self._activation)
        if self._sign is None:
            return max_pool(self._convolve(values, self._out, self._bias, self._activation), pool)
        pooled = max_pool(self._convolve(values, None, None, "none"), pool)
        out = torch.addcmul(self._bias.view(1, -1, 1, 1), pooled, self._sign.view(1, -1, 1, 1))
        out = out.relu_() if self._fused[0].cap is not None else out
        return out if self._out is None else Quantise(self._out)(out)

    def _convolve(self, values: Tensor, out: Range | None, bias: Tensor | None, activation: str) -> Tensor:
        result, kind = ((1.0, 0), torch.float32) if out is None else ((out.scale, out.zero), torch.uint8)
        source, weights = (self._source.scale, self._source.zero), (self._packed, self._scale, self._zeros)
        done: Tensor = torch.ops.onednn.qconv2d_pointwise(
            values, *source, *weights, bias, *self._place, *result, kind, activation, [], ""
        )
        return done

    def _add_to(self, other: Tensor, values: Tensor) -> Tensor:
        assert self._out is not None, "a sum gives bytes"
        assert self._other is not None, "a sum is of bytes"
        source, weights = (self._source.scale, self._source.zero), (self._packed, self._scale, self._zeros)
        done: Tensor = torch.ops.onednn.qconv2d_pointwise.binary(
            values, *source, *weights, other, self._bias, *self._place, self._out.scale, self._out.zero, torch.uint8,
            self._other.scale, self._other.zero, "sum", 1.0, self._activation, [], "",
        )  # fmt: skip
        return done


class Int8Linear(nn.Module):
    """A linear layer in integers, with a floating-point result."""

    def __init__(self, linear: nn.Linear, source: Range) -> None:
        super().__init__()
        self._linear = (linear,)
        self._source = source
        self._packed = self._scale = torch.empty(0)
        self._zeros = torch.zeros(linear.out_features, dtype=torch.long)

    @torch.no_grad()
    def refresh(self, *, whole: bool) -> None:
        """Take the weight as it is now; the bias is read where it is."""
        if whole:
            self._scale, quantised = quantised_rows(self._linear[0].weight)
            self._packed = torch.ops.onednn.qlinear_prepack(quantised, None)

    def forward(self, values: Tensor) -> Tensor:
        """The layer's result in floating point."""
        source, weights = (self._source.scale, self._source.zero), (self._packed, self._scale, self._zeros)
        done: Tensor = torch.ops.onednn.qlinear_pointwise(
            values, *source, *weights, self._linear[0].bias, 1.0, 0, torch.float32, "none", [], ""
        )
        return done


def quantised_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """A weight in signed bytes, and the step of each output channel."""
    rows = weight.detach().float().flatten(1)
    step = rows.abs().amax(dim=1).div_(_LARGEST_WEIGHT).clamp_min_(_SMALLEST_STEP)
    quantised = torch.mul(rows, step.reciprocal().unsqueeze(1)).round_().to(torch.int8)
    return step, quantised.view(weight.shape)
