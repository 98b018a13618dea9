"""How images lie when they meet a model."""

from pathlib import Path

import pytest
import torch
from support.nets import needs_int8
from support.runs import sbpipe, settings
from torch import nn

from sbpipe.config import ModelConfig
from sbpipe.machine.layout import laid_out, layout_of, placed
from sbpipe.models import build_model

CHANNELS_LAST, CHANNELS_FIRST = torch.channels_last, torch.contiguous_format


@pytest.mark.parametrize("layout", [CHANNELS_LAST, CHANNELS_FIRST])
@pytest.mark.parametrize("channels", [1, 3])
def test_images_go_through_layers_in_their_layout_also_grey_ones(
    channels: int, layout: torch.memory_format
) -> None:
    images = torch.randn(5, channels, 7, 9)
    out = laid_out(images, layout)
    assert torch.equal(out, images)
    maps = nn.Conv2d(channels, 4, 3)(out)
    assert maps.is_contiguous(memory_format=layout)
    assert nn.MaxPool2d(2)(maps).is_contiguous(memory_format=layout)


def test_a_part_of_a_batch_is_laid_out_too_and_other_inputs_pass() -> None:
    images = torch.randn(6, 1, 8, 8)[::2]
    assert torch.equal(laid_out(images, CHANNELS_LAST), images)
    vectors = torch.randn(3, 4)
    assert laid_out(vectors, CHANNELS_LAST) is vectors


def test_weights_lie_as_images_do_on_an_accelerator_and_stay_on_the_cpu() -> None:
    overrunning = nn.Sequential(nn.Conv2d(3, 4, 1, stride=2), nn.Conv2d(4, 4, 3))
    for model, layout in ((nn.Sequential(nn.Conv2d(3, 4, 3)), CHANNELS_LAST), (overrunning, CHANNELS_FIRST)):
        here = model[-1].weight
        assert placed(model, torch.device("cpu"))[-1].weight is here  # type: ignore[index]
        assert here.is_contiguous()
        assert placed(model, torch.device("meta"))[-1].weight.is_contiguous(memory_format=layout)  # type: ignore[index]


@pytest.mark.parametrize(
    ("conv", "layout"),
    [
        (nn.Conv2d(7, 16, 1, stride=2), CHANNELS_FIRST),
        (nn.Conv2d(1, 8, 1, stride=(1, 3)), CHANNELS_FIRST),
        (nn.Conv2d(8, 16, 1, stride=2), CHANNELS_LAST),
        (nn.Conv2d(4, 16, 1), CHANNELS_LAST),
        (nn.Conv2d(4, 16, 3, stride=2), CHANNELS_LAST),
    ],
)
def test_only_a_strided_1x1_convolution_of_few_channels_keeps_images_channels_first(
    conv: nn.Conv2d, layout: torch.memory_format
) -> None:
    assert layout_of(nn.Sequential(nn.Conv2d(3, conv.in_channels, 3), nn.Sequential(conv))) == layout


@pytest.mark.parametrize(
    ("name", "options", "layout"),
    [
        ("small_cnn", {"width": 4}, CHANNELS_LAST),
        ("small_resnet", {"depth": 8}, CHANNELS_LAST),
        ("small_resnet", {"depth": 8, "width": 8}, CHANNELS_LAST),
        ("small_resnet", {"depth": 8, "width": 4}, CHANNELS_FIRST),
        ("resnet18_cifar", {}, CHANNELS_LAST),
    ],
)
def test_the_layout_is_a_function_of_the_model(
    name: str, options: dict[str, int], layout: torch.memory_format
) -> None:
    model = build_model(ModelConfig(name, options), num_classes=10, input_shape=(3, 32, 32), seed=0)
    assert layout_of(model) == layout


@pytest.mark.parametrize("precision", ["fp32", pytest.param("int8", marks=needs_int8)])
def test_a_narrow_residual_net_trains_to_the_end(tmp_path: Path, precision: str) -> None:
    """Channels-last, this run ends in a corrupted heap on a CPU with AVX2 and not AVX-512."""
    narrow = {"model__name": "small_resnet", "model__options": {"depth": 8, "width": 4}}
    given = settings(mode="inline", selector__precision=precision, **narrow)
    done = sbpipe("run", "--run-dir", str(tmp_path / "run"), *given)
    assert done.returncode == 0, done.stderr
