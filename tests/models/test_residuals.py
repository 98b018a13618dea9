"""Residuals: the gradient of each example's loss at the model's outputs, whatever the loss."""

import pytest
import torch
from torch import Tensor, nn

from sbpipe.config import LossConfig
from sbpipe.models.losses import build_loss
from sbpipe.models.residuals import MOST_AXES, build_residual

CLASSES = torch.tensor([1, 0, 3, 3])


def outputs(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def slow_residuals(config: LossConfig, values: Tensor, targets: Tensor) -> Tensor:
    """One example after the other, through autograd."""
    rows = []
    for value, target in zip(values, targets, strict=True):
        leaf = value[None].clone().requires_grad_()
        build_loss(config)(leaf, target[None]).sum().backward()
        assert leaf.grad is not None
        rows.append(leaf.grad.flatten())
    return torch.stack(rows)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_has_softmax_less_onehot(smoothing: float) -> None:
    config = LossConfig(label_smoothing=smoothing)
    found = build_residual(config)(outputs(4, 5), CLASSES)
    assert torch.allclose(found, slow_residuals(config, outputs(4, 5), CLASSES), atol=1e-6)
    assert torch.allclose(found.sum(dim=1), torch.zeros(4), atol=1e-6)


@pytest.mark.parametrize(
    ("name", "values", "targets"),
    [
        ("mse", outputs(4, 3), outputs(4, 3).flip(0)),
        ("bce", outputs(4, 5), CLASSES),
        ("cross_entropy", outputs(4, 5, 2), torch.tensor([[1, 0], [2, 2], [4, 3], [0, 0]])),
        ("cross_entropy", outputs(4, 5), outputs(4, 5).softmax(dim=1)),
    ],
)
def test_other_losses_have_their_gradient_in_inference_mode_too(
    name: str, values: Tensor, targets: Tensor
) -> None:
    config = LossConfig(name=name)
    wanted = slow_residuals(config, values, targets)
    with torch.inference_mode():
        found = build_residual(config)(values.clone(), targets.clone())
    assert torch.allclose(found * (wanted.norm() / found.norm()), wanted, atol=1e-6)


def test_long_residuals_keep_their_distances_in_a_projection() -> None:
    values, targets = outputs(64, 3_000), torch.arange(64)
    exact = nn.functional.softmax(values, dim=1)
    exact[torch.arange(64), targets] -= 1.0
    found = build_residual(LossConfig())(values, targets)
    assert found.shape == (64, MOST_AXES)
    ratios = torch.pdist(found) / torch.pdist(exact)
    assert ratios.mean() == pytest.approx(1.0, abs=0.05)
    assert ratios.std() < 0.15
    assert torch.equal(found, build_residual(LossConfig())(values, targets))
