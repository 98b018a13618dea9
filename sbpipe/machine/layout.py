"""Types by name, and the memory format of a model's inputs: one rule for both roles."""

import torch
from torch import nn

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

_BLOCK = 8
"""Channels in a vector register of AVX2, in single precision."""


def layout_of(model: nn.Module) -> torch.memory_format:
    """The memory format of images for this model: channels-last, unless that would corrupt memory.

    It depends on the model only, never on the CPU or the number of threads: trainer and selectors may run on
    different machines, and must compute the same numbers.
    """
    # With channels-last small nets score three times as fast on a CPU.
    is_safe = not any(_overruns_its_buffer(module) for module in model.modules())
    return torch.channels_last if is_safe else torch.contiguous_format


def placed(model: nn.Module, device: torch.device) -> nn.Module:
    """The model on a device. On an accelerator its weights get the memory format of its images, which saves a
    conversion in each pass; on the CPU they keep theirs, because kernels pack them anyway.
    """
    model = model.to(device)
    if device.type != "cpu" and layout_of(model) == torch.channels_last:
        model = model.to(memory_format=torch.channels_last)
    return model


def laid_out(
    inputs: torch.Tensor, layout: torch.memory_format, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """Inputs: images in this layout, floating-point numbers in `dtype`."""
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
    # With one channel both formats are the same bytes; only the strides tell torch's layers which one to use.
    _, channels, height, width = images.shape
    return images.as_strided(images.shape, (height * width, 1, width, 1)) if channels == 1 else images
