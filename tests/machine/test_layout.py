"""How images lie when they meet a model."""

import pytest
import torch
from torch import nn

from sbpipe.machine.layout import laid_out


@pytest.mark.parametrize("channels", [1, 3])
def test_images_go_through_layers_channels_last_also_grey_ones(channels: int) -> None:
    images = torch.randn(5, channels, 7, 9)
    out = laid_out(images)
    assert torch.equal(out, images)
    maps = nn.Conv2d(channels, 4, 3)(out)
    assert maps.is_contiguous(memory_format=torch.channels_last)
    assert nn.MaxPool2d(2)(maps).is_contiguous(memory_format=torch.channels_last)


def test_a_part_of_a_batch_is_laid_out_too_and_other_inputs_pass() -> None:
    images = torch.randn(6, 1, 8, 8)[::2]
    assert torch.equal(laid_out(images), images)
    vectors = torch.randn(3, 4)
    assert laid_out(vectors) is vectors
