"""Data sets of any items, in our own loop: the user's collate function makes batches (inputs, targets).

Inputs may be a tensor, or a tuple or dict of anything; the model is called with them. It must not know
models.
"""

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from sbpipe.config import DataConfig
from sbpipe.data.content import data_error
from sbpipe.data.own_batches import Collate, OwnBatches, OwnData
from sbpipe.data.trees import packed
from sbpipe.errors import DataError
from sbpipe.records import Ids

_UNUSED = ("limit", "test_limit", "validation", "label_noise", "prune")
"""Data settings that apply only to examples of (input, class)."""
_EXCERPTS = 8


@dataclass(frozen=True)
class Trees:
    """Two splits as the user's function returned them, with the collate function that makes their batches."""

    train: Any
    test: Any
    collate: Collate
    num_classes: int
    class_names: tuple[str, ...] = ()


class TreeSplit:
    """One split on a device."""

    def __init__(self, data: OwnData, name: str, *, seed: int, device: torch.device) -> None:
        self._data, self._name = data, name
        self.candidates = OwnBatches(data, seed=seed, device=device)
        """The same batches as the collate function made them, for a selector that scores them."""

    @property
    def num_examples(self) -> int:
        """How many examples there are."""
        return self._data.num_examples

    @property
    def num_in_whole(self) -> int:
        """The same: nothing is pruned."""
        return self._data.num_examples

    def batch(self, example_ids: Ids, epochs: int | Ids) -> Any:
        """The inputs and targets of these examples, in this order, as in their epochs."""
        lot, _ = self.candidates.batch(np.array(example_ids, np.int64), epochs)
        if not isinstance(lot.tree, (tuple, list)) or len(lot.tree) != 2:
            raise DataError(
                f"the collate function of the {self._name} data gave a {type(lot.tree).__name__}. Return a "
                "pair (inputs, targets): the model is called with inputs (a dict by keyword, a tuple in "
                "order), the loss with its outputs and targets"
            )
        return lot.tree[0], lot.tree[1]

    def targets_of(self, example_ids: Ids) -> Ids | None:
        """The classes of these examples, if the data set lists them."""
        classes = self._data.classes
        return None if classes is None else classes[example_ids]

    @property
    def classes(self) -> Ids | None:
        """The classes of all examples, if the data set lists them."""
        return self._data.classes

    def close(self) -> None:
        """Stop the worker processes."""
        self.candidates.close()

    def digest(self) -> str:
        """A short hash of some examples, evenly spread, as in epoch 0."""
        digest = hashlib.blake2b(str(self.num_examples).encode(), digest_size=8)
        count = min(_EXCERPTS, self.num_examples)
        _, tensors = packed(self.batch(np.arange(count) * self.num_examples // count, 0))
        for tensor in tensors:
            digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
            digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()


def splits_of(
    trees: Trees, data: DataConfig, *, seed: int, device: torch.device, batch_size: int
) -> tuple[TreeSplit, TreeSplit]:
    """Both splits on a device, checked."""
    for key in _UNUSED:
        if getattr(data, key):
            reason = (
                "it is of examples of (input, class), and this data set has a collate function of its own"
            )
            raise data_error(
                f"data.{key}", getattr(data, key), reason, "Leave it out, or cut the data itself"
            )
    train, test = (
        TreeSplit(OwnData(split, trees.collate, max(1, data.workers)), name, seed=seed, device=device)
        for split, name in ((trees.train, "train"), (trees.test, "test"))
    )
    if train.num_examples < batch_size:
        reason = f"its {train.num_examples} training examples do not fill a batch of {batch_size}"
        raise data_error("data.name", data.name, reason, "Lower train.batch_size, or use more data")
    return train, test
