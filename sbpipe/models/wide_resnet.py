"""Wide residual networks (Zagoruyko and Komodakis, 2016), pre-activation. It must not know other families.

The default is WRN-28-10 (36.5 M parameters for 10 classes), the Selective-Backprop paper's larger network.
"""

from torch import Tensor, nn

from sbpipe.errors import ModelError
from sbpipe.models.layers import Classifier, conv


class WideBlock(nn.Module):
    """Norm, ReLU, 3x3 convolution, twice, dropout between; a 1x1 shortcut starts behind the first ReLU."""

    def __init__(self, before: int, after: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.activated = nn.Sequential(nn.BatchNorm2d(before), nn.ReLU(inplace=True))
        self.branch = nn.Sequential(
            conv(before, after, 3, stride=stride),
            nn.BatchNorm2d(after),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout) if dropout else nn.Identity(),
            conv(after, after, 3),
        )
        self.projection = None if stride == 1 and before == after else conv(before, after, 1, stride=stride)

    def forward(self, features_nchw: Tensor) -> Tensor:
        """Branch plus shortcut."""
        activated: Tensor = self.activated(features_nchw)
        shortcut: Tensor = features_nchw if self.projection is None else self.projection(activated)
        branch: Tensor = self.branch(activated)
        return branch + shortcut


def wide_resnet(
    num_classes: int, channels: int, *, depth: int = 28, widen_factor: int = 10, dropout: float = 0.0
) -> nn.Module:
    """`depth` counts layers (6n + 4: 10, 16, 22, 28, 40), `widen_factor` multiplies 16-32-64 channels."""
    if depth < 10 or depth % 6 != 4:
        raise ModelError(
            f"model.options.depth = {depth}: must be 6n + 4. Choose for instance 10, 16, 22, 28 or 40"
        )
    layers: list[nn.Module] = [conv(channels, 16, 3)]
    before = 16
    for stage, base in enumerate((16, 32, 64)):
        for block in range((depth - 4) // 6):
            layers.append(
                WideBlock(before, base * widen_factor, 2 if stage > 0 and block == 0 else 1, dropout)
            )
            before = base * widen_factor
    layers += [nn.BatchNorm2d(before), nn.ReLU(inplace=True)]
    return Classifier(nn.Sequential(*layers), before, num_classes)
