"""Views: the pixels of an example in one epoch, a pure function of (seed, epoch, example_id) on any device.

Selector and trainer each make the view by themselves, and the scored pixels must equal the trained pixels bit
for bit. So every draw is integer arithmetic on the host, and the only floating-point steps are one
multiplication and one addition per pixel, each rounded once. This file must not know where images come from,
nor what they are used for.
"""

from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from sbpipe import randomness
from sbpipe.config import ViewConfig
from sbpipe.data.content import ChannelStats, Fetched
from sbpipe.errors import ConfigError
from sbpipe.machine.copies import Uploads
from sbpipe.records import Ids

_NONE: Ids = np.empty(0, np.int64)

Viewed: TypeAlias = tuple[torch.Tensor, torch.Tensor]
"""Inputs and targets on the device."""


class View(Protocol):
    """Turns a split's inputs into what the network sees."""

    def __call__(self, fetched: Fetched, example_ids: Ids, epochs: Ids) -> Viewed:
        """The views of these examples, each in its epoch, in the order asked for; their targets."""
        ...


class PlainView:
    """The view of inputs that are not uint8 images: they stay unchanged."""

    def __init__(self, device: torch.device) -> None:
        self._uploads = Uploads(device)

    def __call__(self, fetched: Fetched, example_ids: Ids, epochs: Ids) -> Viewed:
        """The inputs, in the requested order."""
        rows, targets = self._uploads.together([torch.from_numpy(fetched.rows), fetched.targets])
        return fetched.inputs.index_select(0, rows), targets


class ImageView:
    """The view of uint8 images: crop, flip, normalise, cutout, in that order; float32, axes NCHW.

    The images have a black margin of `margin` pixels. A crop is a random window of the image with its margin;
    without cropping it is the middle window. Cutout sets a square to the mean of each channel; its centre may
    be any pixel, so near an edge only a part of it is inside. Pixels that are not normalised are scaled to
    [0, 1]. A clean view has no crop, flip or cutout.
    """

    def __init__(
        self,
        config: ViewConfig,
        shape: tuple[int, ...],
        stats: ChannelStats,
        device: torch.device,
        *,
        margin: int,
        seed: int,
        is_clean: bool,
    ) -> None:
        self.seed, self.margin = seed, margin
        self._uploads = Uploads(device)
        self.crops, self.flips, self.cuts = (
            wanted and not is_clean for wanted in (config.crop > 0, config.flip, config.cutout > 0)
        )
        self.channels, self.height, self.width = shape
        self.full_width = self.width + 2 * margin
        self.num_full_pixels = (self.height + 2 * margin) * self.full_width
        lines_of_image = (
            np.arange(self.channels)[:, None] * self.num_full_pixels
            + np.arange(self.height) * self.full_width
        )
        self._lines_of_image = _on(device, lines_of_image.ravel())
        mean, deviation = map(np.array, normalisation(config, stats))
        self._scale, self._shift = (
            _per_channel(device, values) for values in (1 / deviation, -mean / deviation)
        )
        self._mean = None if config.normalise else _per_channel(device, np.array(stats.mean) / 255)
        self._cut_rows, self._cut_columns = (
            _on(device, _spans(side, config.cutout)) for side in (self.height, self.width)
        )

    def __call__(self, fetched: Fetched, example_ids: Ids, epochs: Ids) -> Viewed:
        """The views of these examples, each in its epoch, in the order asked for; their targets."""
        drawn = self._drawn(fetched.rows, _Draws(self.seed, example_ids, epochs))
        *sent, targets = self._uploads.together([*map(torch.from_numpy, drawn), fetched.targets])
        corners, flipped, cut_y, cut_x = sent
        images = self._windows(fetched.inputs, corners)
        if self.flips:
            images = torch.cat([images, images.flip(3)]).index_select(0, flipped)
        # Two roundings on purpose: a fused multiply-add would give other bits on devices that have one.
        pixels = images.to(torch.float32).mul_(self._scale).add_(self._shift)
        return self._cut(pixels, cut_y, cut_x) if self.cuts else pixels, targets

    def _drawn(self, rows: Ids, draws: "_Draws") -> "_Drawn":
        """All draws of the host, so that they go to the device in one copy."""
        corners = self._corners(rows, draws)
        count = len(corners)
        return _Drawn(
            corners,
            np.arange(count) + count * draws.below("view.flip", 2) if self.flips else _NONE,
            draws.below("view.cutout.y", self.height) if self.cuts else _NONE,
            draws.below("view.cutout.x", self.width) if self.cuts else _NONE,
        )

    def _corners(self, rows: Ids, draws: "_Draws") -> Ids:
        """Where the windows begin; without a margin, the rows of the images."""
        if not self.margin:
            return rows
        corners = rows * (self.channels * self.num_full_pixels)
        if not self.crops:
            return corners + (self.margin * self.full_width + self.margin)
        num_places = 2 * self.margin + 1
        return corners + (
            draws.below("view.crop.y", num_places) * self.full_width + draws.below("view.crop.x", num_places)
        )

    def _windows(self, inputs: torch.Tensor, corners: torch.Tensor) -> torch.Tensor:
        if not self.margin:
            return inputs.index_select(0, corners)
        # A window is copied line by line. Every possible line is a row of a strided view, which costs
        # nothing.
        every_line = inputs.as_strided((inputs.numel() - self.width + 1, self.width), (1, 1))
        lines = every_line.index_select(0, (corners[:, None] + self._lines_of_image).flatten())
        return lines.view(-1, self.channels, self.height, self.width)

    def _cut(self, pixels: torch.Tensor, cut_y: torch.Tensor, cut_x: torch.Tensor) -> torch.Tensor:
        rows, columns = self._cut_rows.index_select(0, cut_y), self._cut_columns.index_select(0, cut_x)
        square = (rows[:, :, None] * columns[:, None, :])[:, None]
        # Normalised, a channel's mean is 0; otherwise it is added.
        pixels.mul_(1 - square)
        return pixels if self._mean is None else pixels.add_(square * self._mean)


class _Drawn(NamedTuple):
    """The draws for some examples; empty arrays for steps that the view does not have."""

    corners: Ids
    flipped: Ids
    cut_y: Ids
    cut_x: Ids


class _Draws:
    """The random numbers of some examples, each in its epoch."""

    def __init__(self, seed: int, example_ids: Ids, epochs: Ids) -> None:
        self.seed = seed
        self.example_ids = example_ids
        self.groups = [(epoch, epochs == epoch) for epoch in np.unique(epochs).tolist()]

    def below(self, purpose: str, limit: int) -> Ids:
        """A whole number in [0, limit) for each example."""
        if len(self.groups) == 1:
            return randomness.below(
                self.example_ids, randomness.key(self.seed, purpose, self.groups[0][0]), limit
            )
        drawn = np.empty_like(self.example_ids)
        for epoch, of_epoch in self.groups:
            drawn[of_epoch] = randomness.below(
                self.example_ids[of_epoch], randomness.key(self.seed, purpose, epoch), limit
            )
        return drawn


def normalisation(config: ViewConfig, stats: ChannelStats) -> ChannelStats:
    """The numbers that a view subtracts from pixels of 0 to 255, and divides by."""
    if not config.normalise:
        return ChannelStats((0.0,) * len(stats.mean), (255.0,) * len(stats.mean))
    # A channel without contrast has deviation 0: dividing by 1 leaves it at 0.
    return ChannelStats(stats.mean, tuple(value or 1.0 for value in stats.deviation))


def check_view(config: ViewConfig, shape: tuple[int, ...]) -> None:
    """Refuse a view that can leave nothing of an image."""
    side = min(shape[1:])
    if config.crop >= side:
        raise ConfigError(
            "view.crop",
            config.crop,
            f"images of {side} pixels could be cropped away whole",
            f"Set it below {side}",
        )
    if config.cutout > side:
        raise ConfigError(
            "view.cutout",
            config.cutout,
            f"images have only {side} pixels a side",
            f"Set it to at most {side}",
        )


def _spans(side: int, length: int) -> NDArray[np.float32]:
    """For each centre on a side a row of `side` numbers: 1 within the `length` around it, else 0."""
    from_start = np.arange(side) - (np.arange(side)[:, None] - length // 2)
    return ((from_start >= 0) & (from_start < length)).astype(np.float32)


def _per_channel(device: torch.device, values: NDArray[np.float64]) -> torch.Tensor:
    return _on(device, values.astype(np.float32))[:, None, None]


def _on(device: torch.device, values: NDArray[np.int64] | NDArray[np.float32]) -> torch.Tensor:
    return torch.from_numpy(values).to(device)
