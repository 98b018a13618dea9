"""Data held in memory: arrays on the host (ArrayContent) and on a device (ArraySource). Knows no file."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sbpipe.data.content import ChannelStats, Fetched, Relabel, check_labels, refuse_channels_last
from sbpipe.errors import DataError, DeviceError
from sbpipe.records import Ids

# Pixels that go into the fingerprint of a split, and pixels summed at once.
_EXCERPT_PIXELS = 2**16
_PIXELS_AT_ONCE = 2**24


@dataclass(frozen=True)
class ArrayContent:
    """A split whose inputs are one array: uint8 images, axes NCHW, or float32 of any shape."""

    inputs: NDArray[Any]
    labels: NDArray[np.int64]

    @property
    def num_examples(self) -> int:
        """How many examples there are."""
        return len(self.inputs)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return self.inputs.shape[1:]

    @property
    def input_dtype(self) -> torch.dtype:
        """The type of the inputs."""
        return torch.float32

    @property
    def is_image(self) -> bool:
        """Whether the inputs are uint8 images."""
        return self.inputs.dtype == np.uint8

    @property
    def has_classes(self) -> bool:
        """Always: labels are class numbers."""
        return True

    def channel_stats(self) -> ChannelStats:
        """Mean and deviation over all images; whole-number sums, so that every process gets the same bits."""
        channels = range(self.inputs.shape[1])
        at_once = max(_PIXELS_AT_ONCE // self.inputs[0, 0].size, 1)
        counts = np.zeros((len(channels), 256), np.int64)
        for start in range(0, self.num_examples, at_once):
            for channel in channels:
                counts[channel] += np.bincount(
                    self.inputs[start : start + at_once, channel].ravel(), minlength=256
                )
        return ChannelStats(*zip(*map(_mean_and_deviation, counts), strict=True))

    def excerpts(self) -> Iterator[bytes]:
        """All labels, and pixels at a fixed stride."""
        yield self.inputs.dtype.str.encode()
        yield self.labels.astype("<i8").tobytes()
        # An odd stride, so that it does not align with the lines of an image.
        yield self.inputs.reshape(-1)[:: (self.inputs.size // _EXCERPT_PIXELS) | 1].tobytes()

    def part(self, example_ids: Ids) -> "ArrayContent":
        """Only the examples of these ids."""
        return ArrayContent(self.inputs[example_ids], self.labels[example_ids])

    def relabelled(self, change: Relabel) -> "ArrayContent":
        """The same inputs with other labels."""
        return replace(self, labels=change(self.labels, np.arange(self.num_examples)))

    def place(self, device: torch.device, *, margin: int, seed: int) -> "ArraySource":
        """Copy the arrays to the device, images with a black margin."""
        shape = list(self.inputs.shape)
        if margin:
            shape[2:] = [side + 2 * margin for side in shape[2:]]
        dtype = torch.uint8 if self.is_image else torch.float32
        # In Python integers, which cannot overflow: the number is for the error below.
        num_bytes = int(np.prod(shape, dtype=object)) * dtype.itemsize
        try:
            inputs = torch.zeros(shape, dtype=dtype, device=device)
            inside = inputs[:, :, margin:-margin, margin:-margin] if margin else inputs
            # torch warns about read-only arrays, so only these are copied first.
            inside.copy_(torch.from_numpy(np.require(self.inputs, requirements="W")))
            return ArraySource(inputs, self.labels)
        except RuntimeError as error:
            if not isinstance(error, torch.OutOfMemoryError) and "memory" not in str(error):
                raise
            raise DeviceError(
                f"device {str(device)!r}: its memory does not hold the {num_bytes / 2**20:,.0f} MiB of this "
                "data set. "
                "Choose another device, or a data set loaded by worker processes (data.name = 'image_folder' "
                "or 'module:function')"
            ) from None


class ArraySource:
    """A split whose inputs lie on the device, gathered there by id."""

    def __init__(self, inputs: torch.Tensor, labels: NDArray[np.int64]) -> None:
        self._inputs = inputs
        self._labels = labels

    @property
    def num_examples(self) -> int:
        """How many examples there are."""
        return len(self._inputs)

    def fetch(self, example_ids: Ids, epochs: Ids) -> Fetched:
        """All inputs, and the rows of these ids, which the view gathers. Targets are still on the host."""
        return Fetched(self._inputs, example_ids, torch.from_numpy(self._labels[example_ids]))

    def labels_of(self, example_ids: Ids) -> Ids:
        """The classes of these ids."""
        return self._labels[example_ids]

    @property
    def labels(self) -> Ids:
        """The classes of all examples."""
        return self._labels

    def close(self) -> None:
        """Nothing to stop."""


def array_content(
    inputs: NDArray[Any], labels: NDArray[Any], *, name: str, num_classes: int = 0
) -> ArrayContent:
    """The checked split of two arrays, which errors call x_`name` and y_`name`.

    Images may be NCHW, NHWC (the channels are the shorter of the two axes) or NHW.
    """
    x, y = f"x_{name}", f"y_{name}"
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise DataError(
            f"{y}: labels must be one whole number per example, not {labels.dtype} of shape {labels.shape}. "
            "Store class numbers"
        )
    if inputs.ndim == 0 or len(inputs) != len(labels):
        raise DataError(
            f"{x} has shape {inputs.shape} but {y} has {len(labels)} labels. Give every example exactly one "
            "label"
        )
    if not len(inputs):
        raise DataError(f"{x} is empty: there is nothing to learn from. Store at least one example")
    labels = labels.astype(np.int64)
    check_labels(labels, num_classes, y)
    if inputs.dtype == np.uint8:
        return ArrayContent(np.ascontiguousarray(_as_nchw(inputs, x)), labels)
    if inputs.dtype == np.float32 and inputs.ndim > 1:
        refuse_channels_last(inputs.shape[1:], x, f"Store {x}.transpose(0, 3, 1, 2)")
        _check_finite(inputs, x)
        return ArrayContent(np.ascontiguousarray(inputs), labels)
    raise DataError(
        f"{x} is {inputs.dtype} of shape {inputs.shape}: inputs must be uint8 images or float32. "
        f"Store {x}.astype('float32') to have it used as it is, or {x}.astype('uint8') for pixels 0 to 255"
    )


def _as_nchw(images: NDArray[np.uint8], name: str) -> NDArray[np.uint8]:
    if images.ndim == 3:
        return images[:, None]
    if images.ndim != 4 or 0 in images.shape:
        raise DataError(
            f"{name} is uint8 of shape {images.shape}: images must have axes NCHW, NHWC or NHW. Reshape it, "
            "or store float32"
        )
    return images.transpose(0, 3, 1, 2) if images.shape[3] < images.shape[1] else images


def _check_finite(inputs: NDArray[np.float32], name: str) -> None:
    is_finite = np.isfinite(inputs.reshape(len(inputs), -1)).all(axis=1)
    if not is_finite.all():
        first = int(np.argmin(is_finite))
        raise DataError(
            f"{name}[{first}] holds NaN or infinity ({(~is_finite).sum()} examples do). Repair or leave out "
            "these examples"
        )


def _mean_and_deviation(counts: NDArray[np.int64]) -> tuple[float, float]:
    # In Python integers: from some ten million pixels on, total * second overflows int64.
    numbers: list[int] = counts.tolist()
    total = sum(numbers)
    first = sum(value * number for value, number in enumerate(numbers))
    second = sum(value * value * number for value, number in enumerate(numbers))
    return first / total, float(np.sqrt((total * second - first * first) / (total * total)))
