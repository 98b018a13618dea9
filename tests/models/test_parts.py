"""Parts of a model: small ones that can be published often, and the body that holds nearly all bytes."""

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from sbpipe.config import ModelConfig
from sbpipe.models import build_model, parts_of
from sbpipe.models.build import BUILDERS


def build(name: str) -> nn.Module:
    return build_model(ModelConfig(name=name), num_classes=10, input_shape=(3, 32, 32), seed=0)


def num_bytes(model: nn.Module, *parts: str) -> int:
    part_of = parts_of(model)
    return sum(value.nbytes for name, value in model.state_dict().items() if part_of[name] in parts)


@pytest.mark.parametrize("name", [name for name in BUILDERS if name != "wide_resnet"])
def test_every_tensor_of_the_state_dict_has_a_part_and_the_head_is_the_classifier(name: str) -> None:
    model = build(name)
    parts = parts_of(model)
    assert list(parts) == list(model.state_dict())
    assert [key for key, part in parts.items() if part == "head"] == ["head.weight", "head.bias"]


def test_the_fast_parts_of_resnet18_are_a_tenth_of_a_megabyte_of_its_45() -> None:
    model = build("resnet18_cifar")
    assert 0.09e6 < num_bytes(model, "norm", "bias", "head") < 0.11e6
    assert 44.6e6 < num_bytes(model, "norm", "bias", "head", "body") < 44.8e6


def test_running_statistics_and_counters_belong_to_the_norm() -> None:
    parts = parts_of(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 2)))
    assert [
        parts[f"1.{name}"]
        for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    ] == ["norm"] * 5
    assert [parts[name] for name in ("0.weight", "0.bias", "3.weight", "3.bias")] == [
        "body",
        "bias",
        "head",
        "head",
    ]


@pytest.mark.parametrize(
    "norm",
    [
        nn.BatchNorm1d(4),
        nn.GroupNorm(2, 4),
        nn.LayerNorm([4, 4]),
        nn.RMSNorm([2, 4]),
        nn.InstanceNorm1d(4, affine=True),
    ],
)
def test_every_kind_of_normalisation_is_a_norm_even_behind_the_head(norm: nn.Module) -> None:
    parts = parts_of(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), norm))
    assert {part for name, part in parts.items() if name.startswith("2.")} == {"norm"}
    assert parts["1.weight"] == "head"


class LlamaRMSNorm(nn.Module):
    """A normalisation layer of another library: known by its name."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))


class NormFreeLinear(nn.Linear):
    """No normalisation layer, whatever its name says: it holds a matrix."""


def test_foreign_norms_are_known_by_name_unless_they_hold_a_matrix() -> None:
    parts = parts_of(nn.Sequential(LlamaRMSNorm(), NormFreeLinear(4, 4), nn.Linear(4, 2)))
    assert (parts["0.weight"], parts["1.weight"], parts["2.weight"]) == ("norm", "body", "head")


def test_an_activation_with_a_parameter_is_not_mistaken_for_the_head() -> None:
    parts = parts_of(nn.Sequential(nn.Linear(4, 2), nn.PReLU()))
    assert (parts["0.weight"], parts["1.weight"]) == ("head", "body")


def test_a_parametrised_weight_belongs_to_its_layer() -> None:
    parts = parts_of(nn.Sequential(nn.Linear(4, 4), weight_norm(nn.Linear(4, 2))))
    assert {part for name, part in parts.items() if name.startswith("1.")} == {"head"}


def test_a_model_without_matrices_has_no_head() -> None:
    assert set(parts_of(nn.BatchNorm1d(3)).values()) == {"norm"}
    assert parts_of(nn.Linear(2, 2)) == {"weight": "head", "bias": "head"}


def test_the_head_of_a_large_vocabulary_is_no_fast_part() -> None:
    model = nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 20_000))
    assert parts_of(model)["1.weight"] == "body"
    assert parts_of(nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 10_000)))["1.weight"] == "head"
