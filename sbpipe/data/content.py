"""What this room's files hand each other: a split as read (Content), and on a device (Source).

One class per kind stands in arrays.py (held in memory) and datasets.py (loaded by worker processes). This
file knows neither.
"""

import hashlib
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from sbpipe.errors import DataError
from sbpipe.records import Ids

_CHANNELS = (1, 3, 4)
"""Channels that images have."""

Relabel = Callable[[Ids, Ids], Ids]
"""From the classes and the ids of some examples to the classes they shall have."""


class ChannelStats(NamedTuple):
    """The mean and the deviation of each channel, in pixel values 0 to 255."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]


class Fetched(NamedTuple):
    """Some examples before their view: they lie at `rows` of `inputs`; `targets` are in the order asked for,
    on the host or on the device.

    Images in `inputs` are uint8, axes NCHW, with the margin that the source was placed with.
    """

    inputs: torch.Tensor
    rows: Ids
    targets: torch.Tensor


class Source(Protocol):
    """A split placed on a device: gives the examples of any ids, in any order, as often as asked."""

    @property
    def num_examples(self) -> int:
        """How many examples there are."""
        ...

    def fetch(self, example_ids: Ids, epochs: Ids) -> Fetched:
        """The examples of these ids, each as it is in its epoch."""
        ...

    def labels_of(self, example_ids: Ids) -> Ids | None:
        """The classes of these ids, or None when only loading the examples would tell."""
        ...

    @property
    def labels(self) -> Ids | None:
        """The classes of all examples, where they are known without loading."""
        ...

    def close(self) -> None:
        """Stop what works in the background; fetching starts it again."""
        ...


class Content(Protocol):
    """A split as it was read, checked, not yet on a device."""

    @property
    def num_examples(self) -> int:
        """How many examples there are."""
        ...

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input: (channels, height, width) of an image."""
        ...

    @property
    def input_dtype(self) -> torch.dtype:
        """What inputs are, where they are no images: whole numbers reach an embedding as they are."""
        ...

    @property
    def is_image(self) -> bool:
        """Whether inputs are uint8 images, which get a view; all others pass as they are."""
        ...

    @property
    def has_classes(self) -> bool:
        """Whether every target is one class number."""
        ...

    def channel_stats(self) -> ChannelStats:
        """What normalising an image subtracts and divides by."""
        ...

    def excerpts(self) -> Iterator[bytes]:
        """Bytes that tell this content from another's, the same in every process."""
        ...

    def part(self, example_ids: Ids) -> "Content":
        """Only the examples of these ids, numbered from 0 in that order."""
        ...

    def relabelled(self, change: Relabel) -> "Content":
        """The same inputs with other classes, where targets are classes; its excerpts differ too."""
        ...

    def place(self, device: torch.device, *, margin: int, seed: int) -> Source:
        """Put the split on a device, its images with a black margin of so many pixels."""
        ...


class Contents(NamedTuple):
    """A data set as it was read; of the network's `num_classes`, labels use the first `num_labelled`.

    `class_names` are what the data set calls its classes, in the order of their numbers; () = not told.
    """

    train: Content
    test: Content
    num_classes: int
    num_labelled: int
    class_names: tuple[str, ...] = ()


def fingerprint(contents: Contents) -> str:
    """A short hash of what is in the data set, whatever its name and wherever it lies."""
    digest = hashlib.blake2b(str(contents.num_classes).encode(), digest_size=8)
    for content in (contents.train, contents.test):
        digest.update(f"|{content.num_examples}|{content.input_shape}|{content.is_image}|".encode())
        for excerpt in content.excerpts():
            digest.update(excerpt)
    return digest.hexdigest()


def names_in(classes: object) -> tuple[str, ...]:
    """The classes of a data set's attribute `classes`; () unless it is a list of names."""
    if isinstance(classes, (list, tuple)) and all(isinstance(name, str) for name in classes):
        return tuple(classes)
    return ()


def data_error(key: str, given: object, reason: str, way_out: str) -> DataError:
    """A DataError in the form of every user's mistake: what was given, why it cannot be used, what to do."""
    return DataError(f"{key} = {given!r}: {reason}. {way_out}")


def refuse_channels_last(shape: tuple[int, ...], name: str, fix: str) -> None:
    """Refuse float images with their channels last: torch would take their rows for channels, and train."""
    if len(shape) == 3 and shape[2] in _CHANNELS and min(shape[:2]) > max(_CHANNELS):
        raise DataError(
            f"{name} has inputs of shape {shape}: these look like images with their channels last, and a "
            f"network takes them first. {fix}"
        )


def check_labels(
    labels: NDArray[np.int64], num_classes: int, where: str, example_ids: Ids | None = None
) -> None:
    """Refuse labels that are no class, naming the first; `num_classes` 0 = not known."""
    wrong = np.flatnonzero((labels < 0) | (labels >= num_classes) if num_classes else labels < 0)
    if wrong.size:
        first = int(wrong[0])
        allowed = f"0 to {num_classes - 1}" if num_classes else "0 or more"
        raise DataError(
            f"{where}[{first if example_ids is None else example_ids[first]}] = {labels[first]}: labels must "
            f"be {allowed}, "
            f"and {wrong.size} of {labels.size} are not. Number the classes from 0, or set data.classes to "
            "their number"
        )
