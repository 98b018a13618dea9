"""Layers that compute in integers, on the oneDNN kernels that PyTorch ships for x86. Knows no graph.

An activation is an unsigned byte, x = scale (q - zero), with one scale per tensor; a weight is a signed byte
with a scale per output channel. A BatchNorm is folded only into these channel scales and the bias. So new
normalisation statistics, which may arrive at every step, cost little vector arithmetic; only new weights are
quantised and packed again.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn

from sbpipe.scoring.fused import FusedConv, has_onednn, max_pool, rectified, signed

# -128 is not used, so that a weight and its negative are rounded alike.
_LARGEST_WEIGHT = 127
# A channel or tensor of zeros must not divide by zero.
_SMALLEST_STEP = 1e-12


def is_available() -> bool:
    """Whether this build of PyTorch on this CPU has integer kernels."""
    has_kernels = hasattr(torch.ops.onednn, "qconv2d_pointwise") and hasattr(
        torch.ops.onednn, "qlinear_pointwise"
    )
    return has_onednn() and has_kernels and "AVX" in torch.backends.cpu.get_cpu_capability()


@lru_cache(maxsize=1)
def _largest_activation() -> int:
    """255; 127 without VNNI, where kernels add two products in 16 bits, which 8-bit activations would
    overflow.
    """
    # Tested, not read from the CPU's flags: oneDNN may be told not to use what there is (ONEDNN_MAX_CPU_ISA).
    weight = torch.ops.onednn.qlinear_prepack(torch.full((8, 64), _LARGEST_WEIGHT, dtype=torch.int8), None)
    values = torch.full((1, 64), 255, dtype=torch.uint8)
    steps, zeros = torch.ones(8), torch.zeros(8, dtype=torch.long)
    sums: Tensor = torch.ops.onednn.qlinear_pointwise(
        values, 1.0, 0, weight, steps, zeros, None, 1.0, 0, torch.float32, "none", [], ""
    )
    return 255 if bool((sums == 64 * 255 * _LARGEST_WEIGHT).all()) else 127


@dataclass
class Range:
    """The range of a tensor, seen on real candidates; a new range widens it at once and narrows
    it by half.
    """

    low: float = 0.0
    high: float = 0.0
    scale: float = 1.0
    zero: int = 0

    def see(self, low: float, high: float) -> None:
        """Take in the range of some candidates."""
        is_first = self.low == self.high
        # At once, since values outside saturate; by half, since a few candidates may miss the extremes.
        self.low = low if is_first or low < self.low else (self.low + low) / 2
        self.high = high if is_first or high > self.high else (self.high + high) / 2
        # Zero must be represented exactly: convolutions pad with it.
        low, high = min(self.low, 0.0), max(self.high, 0.0)
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
        """The values that the bytes represent."""
        return values.float().sub_(self.span.zero).mul_(self.span.scale)


class Int8Conv(nn.Module):
    """A fused convolution in integers. `out` is the range of its result; None = a floating-point result."""

    def __init__(
        self, fused: FusedConv, source: Range, out: Range | None, other: Range | None, *, owns_other: bool
    ) -> None:
        super().__init__()
        self._fused = (fused,)
        self._source, self._out, self._other = source, out, other
        self._owns_other = owns_other
        self._place = (list(fused.stride), list(fused.padding), list(fused.dilation), fused.groups)
        self._packed = PackedWeight(fused.conv)
        self._sign: Tensor | None = None
        self._scale = self._bias = torch.empty(0)
        self._zeros = torch.zeros(fused.conv.out_channels, dtype=torch.long)

    def refresh(self) -> None:
        """Take the present weights of the sources; unchanged ones stay packed."""
        # 1.0 and 0 are placeholders for the input's scale and zero, which every call passes: a new range
        # needs no packing.
        self._packed.refresh(
            lambda rows, step: torch.ops.onednn.qconv_prepack(rows, step, 1.0, 0, *self._place, None)
        )
        scale, shift = self._fused[0].scale_and_shift()
        self._sign = None
        if scale is not None and self._fused[0].pool is not None and not bool((scale > 0).all()):
            self._sign, scale = torch.sign(scale), scale.abs()
        self._scale = self._packed.step if scale is None else self._packed.step * scale
        self._bias = torch.zeros_like(self._packed.step) if shift is None else shift.float()

    def forward(self, values: Tensor, other: Tensor | None = None) -> Tensor:
        """The chain's result; a sum is written into `other`, or into a copy where it is still needed."""
        fused = self._fused[0]
        if other is not None:
            # The kernel accumulates into the memory of `other`: it needs the same shape and must be ours to
            # overwrite.
            if other.shape == fused.shape_of(values):
                return self._add_to(other if self._owns_other else other.clone(), values)
            assert self._other is not None, "a sum is of bytes"
            wide = self._convolve(values, None, self._bias, None) + Dequantise(self._other)(other)
            return self._narrowed(rectified(wide, fused.cap))
        if self._sign is not None:
            pooled = max_pool(self._convolve(values, None, None, None), fused.pool)
            return self._narrowed(signed(pooled, self._sign, self._bias, fused.cap))
        done = self._convolve(values, self._out, self._bias, fused.cap)
        return done if fused.pool is None else max_pool(done, fused.pool)

    def _operands(self, values: Tensor) -> tuple[Tensor, float, int, Tensor, Tensor, Tensor]:
        """The two factors, each with its scale and zero, as the kernels take them."""
        source, weight = self._source, self._packed.packed
        return values, source.scale, source.zero, weight, self._scale, self._zeros

    def _narrowed(self, values: Tensor) -> Tensor:
        return values if self._out is None else Quantise(self._out)(values)

    def _convolve(self, values: Tensor, out: Range | None, bias: Tensor | None, cap: float | None) -> Tensor:
        result, kind = ((1.0, 0), torch.float32) if out is None else ((out.scale, out.zero), torch.uint8)
        activation = "none" if cap is None else "relu" if cap == torch.inf else "hardtanh"
        limits = [0.0, cap] if activation == "hardtanh" else []
        done: Tensor = torch.ops.onednn.qconv2d_pointwise(
            *self._operands(values), bias, *self._place, *result, kind, activation, limits, ""
        )
        return done if out is None else _within_bits(done)

    def _add_to(self, other: Tensor, values: Tensor) -> Tensor:
        """Sum and ReLU in the kernel. A saturating ReLU needs no cap there: its range does not reach beyond
        it.
        """
        assert self._out is not None, "a sum gives bytes"
        assert self._other is not None, "a sum is of bytes"
        activation = "none" if self._fused[0].cap is None else "relu"
        done: Tensor = torch.ops.onednn.qconv2d_pointwise.binary(
            *self._operands(values), other, self._bias, *self._place,
            self._out.scale, self._out.zero, torch.uint8,
            self._other.scale, self._other.zero, "sum", 1.0, activation, [], "",
        )  # fmt: skip
        return _within_bits(done)


class Int8Linear(nn.Module):
    """A linear layer in integers, with a floating-point result."""

    def __init__(self, linear: nn.Linear, source: Range) -> None:
        super().__init__()
        self._linear = (linear,)
        self._source = source
        self._packed = PackedWeight(linear)
        self._zeros = torch.zeros(linear.out_features, dtype=torch.long)

    def refresh(self) -> None:
        """Take the present weight; the bias is read in place at every call."""
        self._packed.refresh(lambda rows, step: torch.ops.onednn.qlinear_prepack(rows, None))

    def forward(self, values: Tensor) -> Tensor:
        """The layer's result in floating point."""
        source, weight = (self._source.scale, self._source.zero), (self._packed.packed, self._packed.step)
        done: Tensor = torch.ops.onednn.qlinear_pointwise(
            values, *source, *weight, self._zeros, self._linear[0].bias, 1.0, 0, torch.float32, "none", [], ""
        )
        return done


class PackedWeight:
    """A layer's weight in signed bytes, packed for the kernels; renewed only if the weight was written."""

    def __init__(self, layer: nn.Conv2d | nn.Linear) -> None:
        self._layer = layer
        self._written: int | None = None
        self.step = self.packed = torch.empty(0)

    def refresh(self, pack: Callable[[Tensor, Tensor], Tensor]) -> None:
        """Quantise and pack if needed; a computed weight (parametrised, pruned) is new each time."""
        weight = self._layer.weight
        # torch counts the writes into a tensor; a snapshot of the fast part does not change this count.
        written = weight._version if "weight" in self._layer._parameters else None
        if written is None or written != self._written:
            self.step, rows = quantised_rows(weight)
            self.packed = pack(rows, self.step)
        self._written = written


def _within_bits(values: Tensor) -> Tensor:
    """Limit values to 7 bits where only these may be used; the kernels themselves saturate at 8."""
    return values if _largest_activation() == 255 else values.clamp_(max=_largest_activation())


def quantised_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """A weight in signed bytes, and the step of each output channel."""
    rows = weight.detach().float().flatten(1)
    step = rows.abs().amax(dim=1).div_(_LARGEST_WEIGHT).clamp_min_(_SMALLEST_STEP)
    quantised = torch.mul(rows, step.reciprocal().unsqueeze(1)).round_().to(torch.int8)
    return step, quantised.view(weight.shape)
