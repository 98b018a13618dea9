"""DenseNet-BC (Huang et al., 2016) in the CIFAR form: three dense blocks. It must not know other families.

The default is depth 100 with growth 12 (0.77 M parameters for 10 classes).
"""

import torch
from torch import Tensor, nn

from sbpipe.errors import ModelError
from sbpipe.models.layers import Classifier, conv


class DenseLayer(nn.Module):
    """Adds `growth` channels to its input, through a 1x1 bottleneck of four times as many."""

    def __init__(self, before: int, growth: int, dropout: float) -> None:
        super().__init__()
        inner = 4 * growth
        self.branch = nn.Sequential(
            nn.BatchNorm2d(before),
            nn.ReLU(inplace=True),
            conv(before, inner, 1),
            nn.BatchNorm2d(inner),
            nn.ReLU(inplace=True),
            conv(inner, growth, 3),
            nn.Dropout(dropout) if dropout else nn.Identity(),
        )

    def forward(self, features_nchw: Tensor) -> Tensor:
        """The input with the new channels behind it."""
        return torch.cat((features_nchw, self.branch(features_nchw)), dim=1)


def densenet_cifar(
    num_classes: int,
    channels: int,
    *,
    depth: int = 100,
    growth: int = 12,
    compression: float = 0.5,
    dropout: float = 0.0,
) -> nn.Module:
    """`depth` counts layers (6n + 4), each adds `growth` channels; `compression` is kept between blocks."""
    if depth < 10 or depth % 6 != 4:
        raise ModelError(
            f"model.options.depth = {depth}: must be 6n + 4. Choose for instance 22, 40, 100 or 190"
        )
    if not 0.0 < compression <= 1.0:
        raise ModelError(
            f"model.options.compression = {compression}: must be above 0 and at most 1. The paper's is 0.5"
        )
    width = 2 * growth
    layers: list[nn.Module] = [conv(channels, width, 3)]
    for block in range(3):
        for _ in range((depth - 4) // 6):
            layers.append(DenseLayer(width, growth, dropout))
            width += growth
        layers += [nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
        if block < 2:
            narrowed = int(width * compression)
            layers += [conv(width, narrowed, 1), nn.AvgPool2d(2, ceil_mode=True)]
            width = narrowed
    return Classifier(nn.Sequential(*layers), width, num_classes)
