"""Data not held in memory: a map-style data set as read (DatasetContent) and on a device (LoaderSource).

It must not know which data set it is, nor how the worker processes are driven.
"""

import threading
from collections.abc import Iterator
from copy import copy
from typing import Any

import numpy as np
import torch

from sbpipe.data.content import ChannelStats, Fetched, Relabel, check_labels, refuse_channels_last
from sbpipe.data.keyed import Example, Items, KeyedDataset
from sbpipe.data.workers import Workers
from sbpipe.errors import DataError
from sbpipe.machine.copies import Uploads
from sbpipe.records import Ids

# The usual statistics of photographs (ImageNet), for data too large to measure; other images get the middle
# of the range.
_PHOTOGRAPHS = ChannelStats((123.675, 116.28, 103.53), (58.395, 57.12, 57.375))
_NUM_EXCERPTS = 8


class DatasetContent:
    """A split behind a map-style data set: uint8 inputs are images with a view, others stay unchanged.

    `labels` are the classes if they are known without loading; `num_classes` 0 = not known yet. `first` is an
    example whose shapes and types all others must have.
    """

    def __init__(
        self, dataset: Any, *, name: str, num_classes: int, num_workers: int, labels: Ids | None = None
    ) -> None:
        if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
            raise DataError(
                f"the {name} data set is a {type(dataset).__name__} without __len__ or __getitem__: examples "
                "are selected by id. "
                "Make it a map-style data set, such as a subclass of torch.utils.data.Dataset with both"
            )
        if not len(dataset):
            raise DataError(
                f"the {name} data set is empty: there is nothing to learn from. Check what it was made from"
            )
        self.dataset = dataset
        self.name = name
        self.num_classes = num_classes
        self.num_workers = num_workers
        self.labels = labels
        self._relabel: Relabel | None = None
        if labels is not None:
            check_labels(labels, num_classes, f"{name} targets")
        self.first = self._example(0)
        if not self.is_image:
            fix = (
                "Return inputs.permute(2, 0, 1) from the data set, or uint8 images, which are turned for you"
            )
            refuse_channels_last(self.input_shape, f"the {name} data set", fix)

    @property
    def num_examples(self) -> int:
        """How many examples there are."""
        return len(self.dataset)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.first.inputs.shape)

    @property
    def input_dtype(self) -> torch.dtype:
        """The type of the inputs."""
        return self.first.inputs.dtype

    @property
    def is_image(self) -> bool:
        """Whether inputs are uint8 images."""
        return self.first.inputs.dtype == torch.uint8

    @property
    def has_classes(self) -> bool:
        """Whether targets are single whole numbers, like that of the first example."""
        return self.first.target.dtype == torch.int64 and self.first.target.ndim == 0

    def channel_stats(self) -> ChannelStats:
        """Constants, because measuring would mean loading everything."""
        channels = self.input_shape[0]
        return _PHOTOGRAPHS if channels == 3 else ChannelStats((127.5,) * channels, (63.75,) * channels)

    def excerpts(self) -> Iterator[bytes]:
        """A few examples, evenly spread, as in epoch 0 of seed 0, and the rule that changed their classes."""
        if self._relabel is not None:
            yield repr(self._relabel).encode()
        for place in range(_NUM_EXCERPTS):
            for part in self._example(place * (self.num_examples - 1) // (_NUM_EXCERPTS - 1)):
                yield f"{part.dtype}{tuple(part.shape)}".encode()
                yield part.reshape(-1).view(torch.uint8).numpy().tobytes()

    def part(self, example_ids: Ids) -> "DatasetContent":
        """Only the examples of these ids."""
        return DatasetContent(
            torch.utils.data.Subset(self.dataset, example_ids.tolist()),
            name=self.name,
            num_classes=self.num_classes,
            num_workers=self.num_workers,
            labels=None if self.labels is None else self.labels[example_ids],
        )

    def relabelled(self, change: Relabel) -> "DatasetContent":
        """The same examples, with classes changed on loading; the repr of `change` must identify it fully."""
        other = copy(self)
        other._relabel = change
        if self.labels is not None:
            other.labels = change(self.labels, np.arange(self.num_examples))
        return other

    def place(self, device: torch.device, *, margin: int, seed: int) -> "LoaderSource":
        """Load examples on demand and send them to the device, images with a black margin."""
        return LoaderSource(self, device, margin=margin, seed=seed)

    def targets(self, loaded: torch.Tensor, example_ids: Ids) -> torch.Tensor:
        """The class numbers, checked and then changed; other targets pass, for the loss to check."""
        if loaded.dtype != torch.int64 or loaded.ndim != 1:
            return loaded
        check_labels(loaded.numpy(), self.num_classes, f"{self.name} targets", example_ids)
        return (
            loaded if self._relabel is None else torch.from_numpy(self._relabel(loaded.numpy(), example_ids))
        )

    def _example(self, example_id: int) -> Example:
        # Always seed 0: a fingerprint depends on the data, not on the run.
        items = KeyedDataset(self.dataset, seed=0, name=self.name).items([(example_id, 0)])
        return Example(items.inputs[0], self.targets(items.targets, np.array([example_id]))[0])


class LoaderSource:
    """A split whose examples are loaded on request. Threads may share it: one request at a time."""

    def __init__(self, content: DatasetContent, device: torch.device, *, margin: int, seed: int) -> None:
        keyed = KeyedDataset(content.dataset, seed=seed, name=content.name, like=content.first)
        self._content = content
        self._uploads = Uploads(device)
        self._margin = margin
        self._workers = Workers(keyed.items, content.num_workers, name=content.name)
        self._lock = threading.Lock()

    @property
    def num_examples(self) -> int:
        """How many examples there are."""
        return self._content.num_examples

    def fetch(self, example_ids: Ids, epochs: Ids) -> Fetched:
        """Load the examples of these ids, each as it is in its epoch."""
        # Sorted by id: in a sharded data set neighbours share a shard, so each shard is opened once.
        by_id = np.argsort(example_ids, kind="stable")
        items = self._load(example_ids[by_id], epochs[by_id])
        rows = np.empty_like(by_id)
        rows[by_id] = np.arange(by_id.size)
        targets = self._content.targets(items.targets[torch.from_numpy(rows)], example_ids)
        (inputs,) = self._uploads.apart([items.inputs])
        if self._margin:
            inputs = torch.nn.functional.pad(inputs, (self._margin,) * 4)
        return Fetched(inputs, rows, targets)

    def labels_of(self, example_ids: Ids) -> Ids | None:
        """The classes of these ids, if the data set lists them."""
        return None if self._content.labels is None else self._content.labels[example_ids]

    @property
    def labels(self) -> Ids | None:
        """The classes of all examples, if the data set lists them."""
        return self._content.labels

    def close(self) -> None:
        """Stop the worker processes; fetching again starts new ones."""
        with self._lock:
            self._workers.stop()

    def _load(self, example_ids: Ids, epochs: Ids) -> Items:
        if not example_ids.size:
            return Items(*(part.new_empty((0, *part.shape)) for part in self._content.first))
        with self._lock:
            pieces = self._workers.load(list(zip(example_ids.tolist(), epochs.tolist(), strict=True)))
        return Items(*(torch.cat(parts) for parts in zip(*pieces, strict=True)))
