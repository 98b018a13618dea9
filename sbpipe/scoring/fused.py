"""A convolution with all steps that can be folded into it, in floating point. It must not know graphs."""

import torch
from torch import Tensor, nn

_CHANNELS = (1, -1, 1, 1)


class FusedConv(nn.Module):
    """Convolution, max pool, BatchNorm, residual sum and ReLU as one step; `cap` is the ReLU's, or None.

    It reads the modules it was made from, which are overwritten in place when new weights arrive; `refresh`
    derives its own weights from them. BatchNorm is y = s x + t per channel. Around a max pool |s| is applied
    before it and the sign of s after it, since only an increasing map commutes with a maximum.
    """

    def __init__(
        self,
        conv: nn.Conv2d,
        *,
        norm: nn.BatchNorm2d | None,
        pool: nn.MaxPool2d | None,
        cap: float | None,
        dtype: torch.dtype,
        keeps_sign: bool = False,
    ) -> None:
        """`keeps_sign`: apply the sign after a max pool even if all are positive, so that the graph never
        changes.
        """
        super().__init__()
        # In a tuple, so that they are not registered: this module's state is derived, never saved or moved.
        self._sources = (conv, norm)
        self.pool = pool
        self.cap = cap
        self.stride, self.padding, self.dilation, self.groups = (
            conv.stride,
            conv.padding,
            conv.dilation,
            conv.groups,
        )
        self._dtype = dtype
        self._keeps_sign = keeps_sign
        self._has_kernel = _has_kernel(conv.weight.device, dtype)
        self._sign: Tensor | None = None
        self._packed: Tensor | None = None
        self._weight, self._bias = torch.empty(0), torch.empty(0)

    @property
    def conv(self) -> nn.Conv2d:
        """The original convolution."""
        return self._sources[0]

    def scale_and_shift(self) -> tuple[Tensor | None, Tensor | None]:
        """Scale and shift of the bare convolution's result, per channel; None = none."""
        conv, norm = self._sources
        if norm is None:
            return None, conv.bias
        assert norm.running_mean is not None, "only norms with statistics are folded"
        assert norm.running_var is not None, "it comes with the mean"
        scale = torch.rsqrt(norm.running_var + norm.eps)
        scale = scale if norm.weight is None else scale * norm.weight
        shift = -norm.running_mean * scale if conv.bias is None else (conv.bias - norm.running_mean) * scale
        return scale, shift if norm.bias is None else shift + norm.bias

    def refresh(self) -> None:
        """Fold the present weights and statistics of the sources."""
        scale, shift = self.scale_and_shift()
        weight = self.conv.weight
        if scale is not None:
            self._sign = self._sign_of(scale) if self.pool is not None else None
            weight = weight * (scale if self.pool is None else scale.abs()).view(-1, 1, 1, 1)
        bias = torch.zeros_like(weight[:, 0, 0, 0]) if shift is None else shift
        if self._weight.numel() == 0:
            self._weight = torch.empty_like(weight, dtype=self._dtype, memory_format=torch.channels_last)
            self._bias = torch.empty_like(bias, dtype=self._dtype)
        # In place: a compiled scorer keeps references to them.
        self._weight.copy_(weight)
        self._bias.copy_(bias)
        self._packed = None

    def _sign_of(self, scale: Tensor) -> Tensor | None:
        sign = torch.sign(scale).to(self._dtype)
        if self._sign is not None:
            return self._sign.copy_(sign)
        return sign if self._keeps_sign or not bool((scale > 0).all()) else None

    def forward(self, inputs: Tensor, other: Tensor | None = None) -> Tensor:
        """The result of the whole chain."""
        if self._sign is None:
            out = self._compute(inputs, self._bias, other, self.cap)
            return out if self.pool is None else max_pool(out, self.pool)
        return signed(
            max_pool(self._compute(inputs, None, None, None), self.pool), self._sign, self._bias, self.cap
        )

    def _compute(
        self, inputs: Tensor, bias: Tensor | None, other: Tensor | None, cap: float | None
    ) -> Tensor:
        """Convolution, sum and ReLU: in one kernel where there is one."""
        fits = other is None or other.shape == self.shape_of(inputs)
        if self._has_kernel and fits and not torch.compiler.is_compiling():
            return self._in_one_kernel(inputs, bias, other, cap)
        out = torch.conv2d(inputs, self._weight, bias, self.stride, self.padding, self.dilation, self.groups)
        return rectified(out if other is None else out + other, cap)

    def shape_of(self, inputs: Tensor) -> tuple[int, ...]:
        """The shape of the result: a sum with another shape would broadcast, which no kernel does."""
        conv = self.conv
        sides = [
            (
                inputs.shape[2 + k]
                + 2 * int(self.padding[k])
                - self.dilation[k] * (conv.kernel_size[k] - 1)
                - 1
            )
            // self.stride[k]
            + 1
            for k in range(2)
        ]
        return (inputs.shape[0], conv.out_channels, *sides)

    def _in_one_kernel(
        self, inputs: Tensor, bias: Tensor | None, other: Tensor | None, cap: float | None
    ) -> Tensor:
        place = (self.padding, self.stride, self.dilation, self.groups)
        if self._packed is None:
            # Packed for the first input shape; the kernel takes other shapes too.
            self._packed = torch.ops.mkldnn._reorder_convolution_weight(
                self._weight, *place, list(inputs.shape)
            )
        kernel, limits = (
            torch.ops.mkldnn._convolution_pointwise,
            [] if cap in (None, torch.inf) else [0.0, cap],
        )
        activation = "none" if cap is None else "hardtanh" if limits else "relu"
        if other is None:
            out: Tensor = kernel(inputs, self._packed, bias, *place, activation, limits, "")
        elif limits:
            out = rectified(kernel(inputs, self._packed, bias, *place, "none", [], "").add_(other), cap)
        else:
            unary = None if cap is None else activation
            out = kernel.binary(inputs, other, self._packed, bias, *place, "add", None, unary, [], "")
        return out


def signed(pooled: Tensor, sign: Tensor, bias: Tensor, cap: float | None) -> Tensor:
    """Sign, shift and ReLU after a max pool of |scale| times the convolution: the rest of a BatchNorm."""
    return rectified(torch.addcmul(bias.view(_CHANNELS), pooled, sign.view(_CHANNELS)), cap)


def rectified(values: Tensor, cap: float | None) -> Tensor:
    """A ReLU that saturates at `cap`, in place; None = no ReLU."""
    if cap is None:
        return values
    return values.relu_() if cap == torch.inf else values.clamp_(0.0, cap)


def is_plain_pool(module: object) -> bool:
    """Whether `max_pool` can stand in for a module."""
    return type(module) is nn.MaxPool2d and not module.return_indices and _pair(module.dilation) == (1, 1)


def max_pool(values: Tensor, pool: nn.MaxPool2d | None) -> Tensor:
    """Max pooling by maxima of shifted views, also for bytes: on a CPU several times as fast as torch's own.

    On an accelerator torch's own is used.
    """
    assert pool is not None, "who pools has one"
    if values.device.type != "cpu":
        return pool(values)  # type: ignore[no-any-return]
    sizes, steps, edges = _pair(pool.kernel_size), _pair(pool.stride), _pair(pool.padding)
    # Such a pool only makes views, and later steps may write in place.
    if sizes == (1, 1):
        values = values.clone()
    for dim, size, step, edge in zip((2, 3), sizes, steps, edges, strict=True):
        values = _max_along(values, dim, size, step, edge, ceil=pool.ceil_mode)
    return values


def _max_along(values: Tensor, dim: int, size: int, step: int, edge: int, *, ceil: bool) -> Tensor:
    length = values.shape[dim]
    count = -(-(length + 2 * edge - size) // step) + 1 if ceil else (length + 2 * edge - size) // step + 1
    # torch's rule for ceil_mode: a window must not begin in the trailing padding.
    if (count - 1) * step >= length + edge:
        count -= 1
    behind = max(0, (count - 1) * step + size - length - edge)
    if edge or behind:
        around = [0, 0, edge, behind] if dim == 2 else [edge, behind]
        lowest = -torch.inf if values.is_floating_point() else torch.iinfo(values.dtype).min
        values = nn.functional.pad(values, around, value=lowest)
    last = (count - 1) * step + 1
    windows = [slice(first, first + last, step) for first in range(size)]
    views = [values[:, :, window] if dim == 2 else values[:, :, :, window] for window in windows]
    out = views[0]
    for view in views[1:]:
        out = torch.maximum(out, view)
    return out


def _pair(value: int | tuple[int, ...]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def _has_kernel(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether oneDNN's convolution with fused sum and ReLU can be used: on CPUs, in single precision."""
    return (
        device.type == "cpu"
        and dtype == torch.float32
        and has_onednn()
        and hasattr(torch.ops.mkldnn, "_convolution_pointwise")
    )


def has_onednn() -> bool:
    """Whether this build of PyTorch has oneDNN, the library of the kernels used here."""
    return bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]
