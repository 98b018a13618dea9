"""How numbers lie in memory: the formats that have a name, and inputs when they meet a model, one rule for
both roles.
"""

import torch

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def laid_out(inputs: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Images channels-last (small nets score three times as fast on a CPU that way), floating-point inputs in
    `dtype`.
    """
    if inputs.ndim == 4:
        inputs = _channels_last(inputs)
    return inputs.to(dtype) if dtype is not None and inputs.is_floating_point() else inputs


def _channels_last(images: torch.Tensor) -> torch.Tensor:
    images = images.contiguous(memory_format=torch.channels_last)
    # Images of one channel lie the same either way; only their strides tell torch which of the two the layers
    # shall go by.
    _, channels, height, width = images.shape
    return images.as_strided(images.shape, (height * width, 1, width, 1)) if channels == 1 else images
