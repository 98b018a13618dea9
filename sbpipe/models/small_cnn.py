"""A small convolutional network that trains in minutes on one CPU core. It must not know other families.

Five 3x3 convolutions of 16-32-64-128-128 channels, 247,000 parameters. Pooling comes before normalisation: on
a CPU memory traffic dominates the cost of normalisation, and pooling first cuts it to a quarter.
"""

from torch import nn

from sbpipe.models.layers import Classifier, conv


def small_cnn(num_classes: int, channels: int, *, width: int = 16) -> nn.Module:
    """`width` is the number of channels of the first layer."""
    widths = (width, 2 * width, 4 * width, 8 * width, 8 * width)
    layers: list[nn.Module] = []
    for layer, (before, after) in enumerate(zip((channels, *widths[:-1]), widths, strict=True)):
        pool = [nn.MaxPool2d(2, ceil_mode=True)] if layer < 3 else []
        layers += [conv(before, after, 3), *pool, nn.BatchNorm2d(after), nn.ReLU(inplace=True)]
    return Classifier(nn.Sequential(*layers), widths[-1], num_classes)
