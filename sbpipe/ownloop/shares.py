"""Loads a rank's shares of the train batches of a user's own loop. Knows the group, not the run."""

import numpy as np
import torch

from sbpipe.data.own_batches import OwnBatches
from sbpipe.records import Ids, Lot, TrainBatch
from sbpipe.trainer.ranks.group import Group
from sbpipe.trainer.ranks.share import shown


class SharedParts:
    """Train batches for one rank of a loop: its share of each of the user's batches."""

    def __init__(self, batches: OwnBatches, num_parts: int, group: Group) -> None:
        self._batches, self._num_parts, self._group = batches, num_parts, group

    def batch(self, example_ids: Ids, epochs: int | Ids) -> tuple[list[Lot], torch.Tensor]:
        """Rank 0: tell the others which train batch comes next, and load the shares of its parts."""
        epoch_of_each = np.broadcast_to(np.asarray(epochs, np.int64), example_ids.shape)
        self._group.order(example_ids, epoch_of_each)
        with self._group.loader.during("loading a batch"):
            return self.shares(example_ids, epoch_of_each)[1], torch.empty(0)

    def shares(self, example_ids: Ids, epochs: Ids) -> tuple[TrainBatch, list[Lot]]:
        """A train batch as far as this rank knows it, and its shares of the parts."""
        rank, world = self._group.rank, self._group.world
        parts = zip(np.split(example_ids, self._num_parts), np.split(epochs, self._num_parts), strict=True)
        lots = [
            self._batches.batch(shown(ids, rank, world), shown(of_each, rank, world))[0]
            for ids, of_each in parts
        ]
        return _known(example_ids, epochs), lots


def _known(example_ids: Ids, epochs: Ids) -> TrainBatch:
    """A train batch as ranks other than 0 know it: its examples, but not how they were selected."""
    zeros = np.zeros(len(example_ids), np.int64)
    ones = np.ones(len(example_ids), np.float32)
    return TrainBatch(0, example_ids, epochs, ones, ones, zeros, zeros, 0, ones.astype(np.float64), zeros > 0)
