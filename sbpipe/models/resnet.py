"""Residual networks in the CIFAR form (He et al., 2015): a 3x3 stem, no max-pool. Knows no other family.

`small_resnet` is the 16-32-64 channel net of their CIFAR section (depth 20: 0.27 M parameters),
`resnet18_cifar` the 64-128-256-512 channel ResNet-18 that the Selective-Backprop paper trains (11.17 M).
Shortcuts that change shape are 1x1 convolutions.
"""

from torch import Tensor, nn

from sbpipe.errors import ModelError
from sbpipe.models.layers import Classifier, conv


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            conv(before, after, 3, stride=stride),
            nn.BatchNorm2d(after),
            nn.ReLU(inplace=True),
            conv(after, after, 3),
            nn.BatchNorm2d(after),
        )
        keeps_shape = stride == 1 and before == after
        self.shortcut = (
            nn.Identity()
            if keeps_shape
            else nn.Sequential(conv(before, after, 1, stride=stride), nn.BatchNorm2d(after))
        )
        self.activation = nn.ReLU(inplace=True)

    def forward(self, features_nchw: Tensor) -> Tensor:
        """Branch plus shortcut."""
        out: Tensor = self.activation(self.branch(features_nchw) + self.shortcut(features_nchw))
        return out


def _resnet(num_classes: int, channels: int, *, widths: tuple[int, ...], blocks: int) -> nn.Module:
    layers: list[nn.Module] = [conv(channels, widths[0], 3), nn.BatchNorm2d(widths[0]), nn.ReLU(inplace=True)]
    before = widths[0]
    for stage, width in enumerate(widths):
        for block in range(blocks):
            layers.append(BasicBlock(before, width, stride=2 if stage > 0 and block == 0 else 1))
            before = width
    return Classifier(nn.Sequential(*layers), before, num_classes)


def small_resnet(num_classes: int, channels: int, *, depth: int = 20, width: int = 16) -> nn.Module:
    """`depth` counts layers (6n + 2: 8, 14, 20, 32, ...); `width` is the channels of the first stage."""
    if depth < 8 or depth % 6 != 2:
        raise ModelError(
            f"model.options.depth = {depth}: must be 6n + 2. Choose for instance 8, 14, 20, 32, 44 or 56"
        )
    return _resnet(num_classes, channels, widths=(width, 2 * width, 4 * width), blocks=(depth - 2) // 6)


def resnet18_cifar(num_classes: int, channels: int, *, width: int = 64) -> nn.Module:
    """`width` is the number of channels of the first stage."""
    return _resnet(num_classes, channels, widths=(width, 2 * width, 4 * width, 8 * width), blocks=2)
