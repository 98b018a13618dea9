"""Batches of a user's own data set, made by the user's own collate function, each a pure function of its ids.

Everything runs in worker processes: there the generators that the data set or the collate function draws from
are seeded, and those of the user's process stay untouched. Only plain tensors, which need no code, are
indexed here. It must not know what a batch holds, nor whether it is scored or trained on.
"""

import itertools
import pickle
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch.utils.data import TensorDataset, default_collate

from sbpipe import randomness
from sbpipe.data.keyed import seed_generators
from sbpipe.data.trees import joined, moved
from sbpipe.data.workers import Wanted, Workers
from sbpipe.errors import DataError
from sbpipe.machine.copies import Uploads
from sbpipe.records import Ids, Lot

Collate: TypeAlias = Callable[[list[Any]], Any]


@dataclass(frozen=True)
class OwnData:
    """A user's data to select from: a map-style data set, and the function that makes its batches."""

    dataset: Any
    collate: Collate
    num_workers: int = 1

    @property
    def num_examples(self) -> int:
        """How many examples there are."""
        return len(self.dataset)

    @property
    def classes(self) -> Ids | None:
        """The class of every example, if the data set has `targets`, as torchvision's do."""
        told = getattr(self.dataset, "targets", None)
        if isinstance(self.dataset, TensorDataset):
            told = self.dataset.tensors[-1]
        try:
            classes = np.asarray(told)
        # For instance a list of boxes.
        except (ValueError, TypeError, RuntimeError):
            return None
        is_fit = classes.shape == (self.num_examples,) and classes.dtype.kind in "iu" and classes.min() >= 0
        return classes.astype(np.int64) if is_fit else None

    @property
    def is_plain(self) -> bool:
        """Whether a batch is just rows of tensors, which needs no code of the user's."""
        return type(self.dataset) is TensorDataset and self.collate is default_collate


class OwnBatches:
    """Batches of any ids on a device. Threads may not share it."""

    def __init__(self, data: OwnData, *, seed: int, device: torch.device) -> None:
        self._data, self._uploads = data, Uploads(device)
        self.seed = seed
        self._workers = Workers(_KeyedLoad(data, seed), max(1, data.num_workers), name="training")

    @property
    def num_examples(self) -> int:
        """How many examples there are."""
        return self._data.num_examples

    def start(self) -> None:
        """Start the worker processes; call it while this process has no threads."""
        if not self._data.is_plain:
            self._workers.start()

    def batch(self, example_ids: Ids, epochs: int | Ids) -> tuple[Lot, torch.Tensor]:
        """The batch of these examples, as in their epochs; it has no known targets."""
        tree = self._tree(example_ids, np.broadcast_to(np.asarray(epochs, np.int64), example_ids.shape))
        return Lot(moved(tree, self._uploads), len(example_ids)), torch.empty(0)

    def close(self) -> None:
        """Stop the worker processes."""
        self._workers.stop()

    def _tree(self, example_ids: Ids, epochs: Ids) -> Any:
        if self._data.is_plain:
            rows = torch.from_numpy(np.array(example_ids))
            return [tensor[rows] for tensor in self._data.dataset.tensors]
        wanted = list(zip(example_ids.tolist(), epochs.tolist(), strict=True))
        # With torch's own function, batches of parts can be joined to the batch of all.
        if self._data.collate is default_collate:
            return joined(self._workers.load(wanted))
        if self._data.num_workers <= 1:
            return self._workers.ask([_Collated(wanted)])[0]
        pieces = self._workers.ask([_Raw(part) for part in _parts(wanted, self._data.num_workers)])
        return self._workers.ask([_Collated(wanted, pieces)])[0]


class PartedBatches:
    """Train batches for a loop that accumulates gradients: each is several of the user's batches."""

    def __init__(self, batches: OwnBatches, num_parts: int) -> None:
        self._batches, self._num_parts = batches, num_parts

    def batch(self, example_ids: Ids, epochs: int | Ids) -> tuple[list[Lot], torch.Tensor]:
        """The parts of a train batch, in order."""
        epoch_of_each = np.broadcast_to(np.asarray(epochs, np.int64), example_ids.shape)
        parts = zip(
            np.split(example_ids, self._num_parts), np.split(epoch_of_each, self._num_parts), strict=True
        )
        return [self._batches.batch(*part)[0] for part in parts], torch.empty(0)


class _Raw(NamedTuple):
    """A request for raw examples of the data set, pickled."""

    wanted: Wanted


class _Collated(NamedTuple):
    """A request for a batch, of examples that others have loaded (`pieces`), or that it loads itself."""

    wanted: Wanted
    pieces: list[bytes] | None = None


@dataclass(frozen=True)
class _KeyedLoad:
    """The work of a worker: examples and batches as functions of (seed, epoch, example_id) only."""

    data: OwnData
    seed: int

    def __call__(self, request: Wanted | _Raw | _Collated) -> Any:
        if isinstance(request, _Raw):
            return pickle.dumps(self._examples(request.wanted), protocol=5)
        if isinstance(request, _Collated):
            return self._batch(request.wanted, request.pieces)
        return self._batch(request, None)

    def _examples(self, wanted: Wanted) -> list[Any]:
        # Sorted by id: in a sharded data set neighbours share a shard, so each shard is opened once.
        by_id = sorted(range(len(wanted)), key=lambda place: wanted[place][0])
        found = {place: self._example(*wanted[place]) for place in by_id}
        return [found[place] for place in range(len(wanted))]

    def _example(self, example_id: int, epoch: int) -> Any:
        seed_generators(randomness.key(self.seed, "data.transform", epoch, example_id))
        try:
            return self.data.dataset[example_id]
        # A user's code may raise anything. Sent as text, because not every exception can be pickled.
        except Exception as error:
            raise DataError(
                f"training example {example_id} could not be read by the data set itself:\n"
                f"{traceback.format_exc()}"
            ) from error

    def _batch(self, wanted: Wanted, pieces: list[bytes] | None) -> Any:
        examples = (
            self._examples(wanted)
            if pieces is None
            else [example for piece in pieces for example in pickle.loads(piece)]
        )
        # Random draws of a collate function (for masks, say) depend on the ids of its batch.
        seed_generators(randomness.key(self.seed, "data.collate", *itertools.chain(*wanted)))
        try:
            return self.data.collate(examples)
        except Exception as error:
            raise DataError(
                f"the collate function failed on training examples {[each for each, _ in wanted][:8]}...:\n"
                f"{traceback.format_exc()}"
            ) from error


def _parts(wanted: Wanted, count: int) -> list[Wanted]:
    size = -(-len(wanted) // count)
    return [wanted[start : start + size] for start in range(0, len(wanted), size)]
