"""Memory formats by name, and the layout of inputs when they meet a model: one rule for both roles."""

import torch
from torch import nn

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

_BLOCK = 8
"""Channels in a vector register of AVX2, in single precision."""


def layout_of(model: nn.Module) -> torch.memory_format:
    """How images must lie for this model: channels-last, unless that would corrupt memory.

    It is a function of the model alone, never of the CPU or the number of threads: trainer and selectors may
    run on different machines, and each must compute what the others compute.
    """
    # Channels-last, small nets score three times as fast on a CPU.
    is_safe = not any(_overruns_its_buffer(module) for module in model.modules())
    return torch.channels_last if is_safe else torch.contiguous_format


def placed(model: nn.Module, device: torch.device) -> nn.Module:
    """The model on a device; on an accelerator its weights lie as its images do, so none is turned around
    in each pass. On the CPU they stay: kernels pack them anyway.
    """
    model = model.to(device)
    if device.type != "cpu" and layout_of(model) == torch.channels_last:
        model = model.to(memory_format=torch.channels_last)
    return model


def laid_out(
    inputs: torch.Tensor, layout: torch.memory_format, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """Images in this layout, floating-point inputs in `dtype`."""
    if inputs.ndim == 4:
        inputs = _channels_last(inputs) if layout == torch.channels_last else inputs.contiguous()
    return inputs.to(dtype) if dtype is not None and inputs.is_floating_point() else inputs


def _overruns_its_buffer(module: nn.Module) -> bool:
    """Whether it is a strided 1x1 convolution of few input channels, which writes past a buffer."""
    # With one thread, in single precision, on a CPU that has AVX2 and not AVX-512, oneDNN's kernel for it
    # (jit_1x1:avx2, backward_weights) writes past the end of its scratch memory and corrupts the heap. Seen
    # with every number of input channels below 8; never from 8 on, with a larger kernel, without a stride,
    # or channels-first.
    return (
        isinstance(module, nn.Conv2d)
        and module.in_channels < _BLOCK
        and module.kernel_size == (1, 1)
        and module.stride != (1, 1)
    )


def _channels_last(images: torch.Tensor) -> torch.Tensor:
    images = images.contiguous(memory_format=torch.channels_last)
    # Images of one channel lie the same either way; only their strides tell torch which of the two the layers
    # shall go by.
    _, channels, height, width = images.shape
    return images.as_strided(images.shape, (height * width, 1, width, 1)) if channels == 1 else images
