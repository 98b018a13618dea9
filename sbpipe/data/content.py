"""The interfaces between this room's files: a split as read (Content), and on a device (Source).

Each has one class in arrays.py (held in memory) and one in datasets.py (loaded by worker processes). This
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
"""Numbers of channels that images have."""

Relabel = Callable[[Ids, Ids], Ids]
"""From the classes and ids of some examples to their new classes."""


class ChannelStats(NamedTuple):
    """The mean and the deviation of each channel, in pixel values 0 to 255."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]


class Fetched(NamedTuple):
    """Some examples before their view: they are the `rows` of `inputs`; `targets` are in the requested order,
    on the host or on the device.

    Images in `inputs` are uint8, axes NCHW, with the margin that the source was placed with.
    """

    inputs: torch.Tensor
    rows: Ids
    targets: torch.Tensor


class Source(Protocol):
    """A split placed on a device: returns the examples of any ids, in any order, any number of times."""

    @property
    def num_examples(self) -> int:
        """How many examples there are."""
        ...

    def fetch(self, example_ids: Ids, epochs: Ids) -> Fetched:
        """The examples of these ids, each as it is in its epoch."""
        ...

    def labels_of(self, example_ids: Ids) -> Ids | None:
        """The classes of these ids; None if they are unknown without loading the examples."""
        ...

    @property
    def labels(self) -> Ids | None:
        """The classes of all examples; None if they are unknown without loading."""
        ...

    def close(self) -> None:
        """Stop background processes; fetching starts them again."""
        ...


class Content(Protocol):
    """A split as read and checked, not yet on a device."""

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
        """The type of inputs that are no images: whole numbers must reach an embedding unchanged."""
        ...

    @property
    def is_image(self) -> bool:
        """Whether inputs are uint8 images, which get a view; all others stay unchanged."""
        ...

    @property
    def has_classes(self) -> bool:
        """Whether every target is one class number."""
        ...

    def channel_stats(self) -> ChannelStats:
        """The statistics for normalising images."""
        ...

    def excerpts(self) -> Iterator[bytes]:
        """Bytes that identify this content, the same in every process."""
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
    """A data set as read. The network has `num_classes` classes; labels use the first `num_labelled` of them.

    `class_names` are the data set's names of its classes, in the order of their numbers; () = unknown.
    """

    train: Content
    test: Content
    num_classes: int
    num_labelled: int
    class_names: tuple[str, ...] = ()


def fingerprint(contents: Contents) -> str:
    """A short hash of the contents of a data set, independent of its name and place."""
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
    """A DataError in the common form of a user's mistake: what was given, why it is wrong, what to do."""
    return DataError(f"{key} = {given!r}: {reason}. {way_out}")


def refuse_channels_last(shape: tuple[int, ...], name: str, fix: str) -> None:
    """Refuse float images with channels last: torch would train with their rows as channels."""
    if len(shape) == 3 and shape[2] in _CHANNELS and min(shape[:2]) > max(_CHANNELS):
        raise DataError(
            f"{name} has inputs of shape {shape}: these look like images with their channels last, and a "
            f"network takes them first. {fix}"
        )


def check_labels(
    labels: NDArray[np.int64], num_classes: int, where: str, example_ids: Ids | None = None
) -> None:
    """Refuse labels that are no class, and name the first; `num_classes` 0 = unknown."""
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
