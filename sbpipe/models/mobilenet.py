"""MobileNetV2 (Sandler et al., 2018) in the CIFAR form. It must not know other families.

It has the blocks and widths of the original (2.24 M parameters for 10 classes). For 32x32 images the stem and
the first two stages that halve the image have stride 1, so the last features are 4x4 and not 1x1.
"""

from torch import Tensor, nn

from sbpipe.models.layers import Classifier, conv

# expansion, channels, blocks, stride of the first block
STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 1),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
STEM_CHANNELS, LAST_CHANNELS = 32, 1280


def _activated(convolution: nn.Conv2d) -> list[nn.Module]:
    return [convolution, nn.BatchNorm2d(convolution.out_channels), nn.ReLU6(inplace=True)]


class InvertedResidual(nn.Module):
    """Widen by 1x1, filter each channel by 3x3, narrow by 1x1; a shortcut where the shape is kept."""

    def __init__(self, before: int, after: int, expansion: int, stride: int) -> None:
        super().__init__()
        inner = before * expansion
        widen = [] if expansion == 1 else _activated(conv(before, inner, 1))
        filtered = _activated(conv(inner, inner, 3, stride=stride, groups=inner))
        self.branch = nn.Sequential(*widen, *filtered, conv(inner, after, 1), nn.BatchNorm2d(after))
        self.has_shortcut = stride == 1 and before == after

    def forward(self, features_nchw: Tensor) -> Tensor:
        """The branch, plus the input where it fits."""
        out: Tensor = self.branch(features_nchw)
        return out + features_nchw if self.has_shortcut else out


def mobilenet_v2_cifar(
    num_classes: int, channels: int, *, width_mult: float = 1.0, dropout: float = 0.0
) -> nn.Module:
    """`width_mult` scales every layer's channels, which stay multiples of 8; `dropout` is before the head."""
    before = _scaled(STEM_CHANNELS, width_mult)
    layers = _activated(conv(channels, before, 3))
    for expansion, width, blocks, stride in STAGES:
        for block in range(blocks):
            after = _scaled(width, width_mult)
            layers.append(InvertedResidual(before, after, expansion, stride if block == 0 else 1))
            before = after
    # As in the paper: a width below 1 narrows every layer but this one.
    last = _scaled(LAST_CHANNELS, max(1.0, width_mult))
    layers += _activated(conv(before, last, 1))
    return Classifier(nn.Sequential(*layers), last, num_classes, dropout=dropout)


def _scaled(width: int, width_mult: float) -> int:
    return max(8, 8 * round(width * width_mult / 8))
