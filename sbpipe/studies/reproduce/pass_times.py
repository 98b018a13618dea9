"""Seconds of a forward and a backward pass on this machine's CPU. Knows no claim."""

import time
from collections.abc import Mapping
from typing import Any

import torch

from sbpipe.config import LossConfig, ModelConfig
from sbpipe.machine.layout import laid_out, layout_of
from sbpipe.models import build_model
from sbpipe.models.losses import build_loss

BATCH_SIZE = 128
_SHAPE = (3, 32, 32)
# The first passes allocate memory and choose kernels.
_WARM = 2


def backward_over_forward(
    name: str, options: Mapping[str, Any], *, rounds: int, batch_size: int = BATCH_SIZE
) -> list[float]:
    """The ratio in each round after the warm-up; the loss counts as forward."""
    model = build_model(ModelConfig(name, dict(options)), num_classes=10, input_shape=_SHAPE, seed=0)
    loss = build_loss(LossConfig())
    generator = torch.Generator().manual_seed(0)
    inputs = laid_out(torch.randn(batch_size, *_SHAPE, generator=generator), layout_of(model))
    targets = torch.randint(0, 10, (batch_size,), generator=generator)
    ratios = []
    for _ in range(_WARM + rounds):
        # It sets gradients to None, so that every backward pass writes new ones, as in training.
        model.zero_grad()
        begin = time.perf_counter()
        value = loss(model(inputs), targets).mean()
        middle = time.perf_counter()
        value.backward()  # type: ignore[no-untyped-call]
        ratios.append((time.perf_counter() - middle) / (middle - begin))
    return ratios[_WARM:]
