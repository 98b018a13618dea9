"""Optimizers: any of torch.optim by name, with the settings it knows and none that it does not."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from sbpipe.config import ModelConfig, OptimConfig
from sbpipe.errors import ConfigError, ModelError
from sbpipe.models import build_model
from sbpipe.trainer.optimizer import FUSED, UNUSABLE, build_optimizer, has_kernel

USABLE = [
    name
    for name, kind in vars(torch.optim).items()
    if isinstance(kind, type)
    and issubclass(kind, torch.optim.Optimizer)
    and name not in (*UNUSABLE, "Optimizer", "Muon")
]


def group_of(model: nn.Module, **settings: Any) -> dict[str, Any]:
    return build_optimizer(OptimConfig(**settings), model).param_groups[0]


def train(model: nn.Module, config: OptimConfig, input_shape: tuple[int, ...], *, steps: int) -> list[float]:
    """The loss before each step on one fixed batch."""
    optimizer, inputs = (
        build_optimizer(config, model),
        torch.randn(16, *input_shape, generator=torch.Generator().manual_seed(0)),
    )
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), torch.arange(16) % 2)
        torch.autograd.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("name", USABLE)
def test_every_class_of_torch_optim_can_be_named_in_any_case_and_learns(name: str) -> None:
    model = nn.Linear(4, 2)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    losses = train(model, OptimConfig(name=name.lower(), lr=0.01), (4,), steps=5)
    assert losses[-1] < losses[0]


def test_sgd_gets_rate_momentum_nesterov_and_decay() -> None:
    group = group_of(nn.Linear(4, 2), lr=0.3, momentum=0.8, weight_decay=0.01)
    assert (group["lr"], group["momentum"], group["nesterov"], group["weight_decay"]) == (
        0.3,
        0.8,
        True,
        0.01,
    )


def test_classes_without_momentum_or_decay_do_without_them() -> None:
    adam, rprop = group_of(nn.Linear(4, 2), name="Adam"), group_of(nn.Linear(4, 2), name="Rprop")
    assert "momentum" not in adam
    assert adam["weight_decay"] == OptimConfig.weight_decay
    assert "weight_decay" not in rprop


def test_nesterov_needs_momentum_and_is_off_without_it() -> None:
    assert group_of(nn.Linear(4, 2), momentum=0.0)["nesterov"] is False


def test_options_reach_the_optimizer_and_toml_lists_become_tuples() -> None:
    assert group_of(nn.Linear(4, 2), name="AdamW", options={"betas": [0.8, 0.9]})["betas"] == (0.8, 0.9)


def test_frozen_parameters_are_left_out() -> None:
    model = nn.Sequential(nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 2))
    assert len(group_of(model)["params"]) == 2
    with pytest.raises(ModelError, match="no parameter requires grad"):
        build_optimizer(OptimConfig(), model.requires_grad_(False))


@pytest.mark.parametrize("name", FUSED)
def test_steps_are_fused_on_the_cpu_unless_the_user_decides(name: str) -> None:
    assert group_of(nn.Linear(4, 2), name=name)["fused"] is True
    assert group_of(nn.Linear(4, 2), name=name, options={"foreach": True})["fused"] is not True
    assert group_of(nn.Linear(4, 2).to("meta"), name=name)["fused"] is not True


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_fused_sgd_ends_at_the_same_weights_as_plain_sgd(memory_format: torch.memory_format) -> None:
    plain = build_model(ModelConfig(), num_classes=2, input_shape=(3, 8, 8), seed=0).to(
        memory_format=memory_format
    )
    fused = copy.deepcopy(plain)
    train(plain, OptimConfig(options={"fused": False}), (3, 8, 8), steps=3)
    train(fused, OptimConfig(), (3, 8, 8), steps=3)
    assert all(
        torch.allclose(p, f, atol=1e-5) for p, f in zip(plain.parameters(), fused.parameters(), strict=True)
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "Sgdd"}, "optim.name = 'Sgdd': is no class of torch.optim. It is one of ASGD, .*SGD"),
        ({"name": "optimizer"}, "is no class of torch.optim"),
        ({"name": "LBFGS"}, "'LBFGS': evaluates the loss several times per step.*Choose one of"),
        ({"name": "sparseadam"}, "takes sparse gradients only"),
        (
            {"options": {"beta": 1}},
            "optim.options.beta = 1: SGD has no such option. It has dampening, differentiable, foreach",
        ),
        ({"options": {"params": 1}}, "optim.options.params = 1: SGD has no such option"),
        ({"options": {"lr": 1}}, "optim.options.lr = 1: has a key of its own. Set optim.lr instead"),
        ({"options": {"dampening": 0.5}}, "optim.name = 'SGD': refuses .*dampening = 0.5 .*Nesterov"),
        ({"name": "Adam", "options": {"betas": [2.0, 0.9]}}, "refuses .*Invalid beta"),
    ],
)
def test_a_setting_that_cannot_be_used_is_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_optimizer(OptimConfig(**settings), nn.Linear(4, 2))


@pytest.mark.parametrize("name", FUSED)
def test_an_optimizer_is_fused_where_torch_has_the_kernel_and_not_elsewhere(name: str) -> None:
    for kind in ("cpu", "cuda", "xpu"):
        key = torch._C._dispatch_key_for_device(kind)
        has_one = torch._C._dispatch_has_kernel_for_dispatch_key(FUSED[name], key)
        assert has_kernel(FUSED[name], torch.device(kind)) is has_one
    here, nowhere = (nn.Linear(2, 2, device=device) for device in ("cpu", "meta"))
    assert build_optimizer(OptimConfig(name=name), here).defaults["fused"]
    assert not build_optimizer(OptimConfig(name=name), nowhere).defaults["fused"]
