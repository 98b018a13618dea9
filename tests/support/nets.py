"""Small nets of every family, their scorers, and candidates to score."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sbpipe.config import LossConfig, ModelConfig
from sbpipe.models import build_model
from sbpipe.models.losses import build_loss
from sbpipe.scoring import Scorer, int8

needs_int8 = pytest.mark.skipif(
    not int8.is_available(), reason="integer kernels need oneDNN on an x86 CPU with AVX2 or later"
)
CPU = torch.device("cpu")
PRECISIONS = ["fp32", "bf16", "fp16", "int8"]
FAMILIES: dict[str, dict[str, float]] = {
    "small_cnn": {"width": 8},
    "small_resnet": {"depth": 8},
    "mobilenet_v2_cifar": {"width_mult": 0.25},
    "wide_resnet": {"depth": 10, "widen_factor": 1},
    "densenet_cifar": {"growth": 4, "depth": 10},
}


def net(name: str = "small_cnn") -> nn.Module:
    config = ModelConfig(name=name, options=FAMILIES[name])
    return build_model(config, num_classes=10, input_shape=(3, 32, 32), seed=0)


def scorer_of(model: nn.Module, precision: str = "fp32", **options: float) -> Scorer:
    return Scorer(model, build_loss(LossConfig()), precision=precision, device=CPU, **options)  # type: ignore[arg-type]


def candidates(count: int = 32, side: int = 32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(count, 3, side, side, generator=generator)
    return inputs, torch.randint(0, 10, (count,), generator=generator)


def unsettled(model: nn.Module) -> nn.Module:
    """Norms as training leaves them: scales of both signs, statistics of their own."""
    generator = torch.Generator().manual_seed(2)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            for value, mean, spread in (
                (module.weight, 1.0, 0.7),
                (module.bias, 0.0, 0.3),
                (module.running_mean, 0.0, 0.3),
            ):
                assert value is not None
                value.data.copy_(mean + spread * torch.randn(value.shape, generator=generator))
            assert module.running_var is not None
            module.running_var.data.copy_(0.5 + torch.rand(module.running_var.shape, generator=generator))
    return model


def exact_losses(model: nn.Module, inputs: Tensor, targets: Tensor) -> np.ndarray:
    with torch.no_grad():
        return nn.functional.cross_entropy(model.eval()(inputs), targets, reduction="none").numpy()
