"""Pieces that the model families share. It must not know any family."""

from torch import Tensor, nn


def conv(in_channels: int, out_channels: int, kernel: int, *, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    """A convolution that keeps the image size at stride 1; without bias, since a norm follows."""
    return nn.Conv2d(
        in_channels, out_channels, kernel, stride=stride, padding=kernel // 2, groups=groups, bias=False
    )


def initialise(model: nn.Module) -> None:
    """He initialisation by fan-in (which counts groups), ones and zeros for norms, zero biases."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_in", nonlinearity="relu")
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)


class Classifier(nn.Module):
    """Features, the mean over the image, and a linear head: the common end of every family here."""

    def __init__(self, features: nn.Module, width: int, num_classes: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.features = features
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        self.head = nn.Linear(width, num_classes)
        initialise(self)

    def forward(self, images_nchw: Tensor) -> Tensor:
        """The logits, [N, num_classes]."""
        features_nchw: Tensor = self.features(images_nchw)
        logits: Tensor = self.head(self.dropout(features_nchw.mean(dim=(2, 3))))
        return logits
