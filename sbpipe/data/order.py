"""The epoch order: which example stands at which position of an epoch, without ever holding a list of them.

A keyed permutation, so that the ids at any range of positions cost O(range) time and the memory of a few
blocks, whatever the size of the data set, and every process that knows the seed agrees. It must not know what
the ids stand for, nor which of them are kept.
"""

import functools
import math

import numpy as np
from numpy.typing import NDArray

from sbpipe import randomness

Ids = NDArray[np.int64]

# Luby and Rackoff need four rounds for a permutation that looks random; the rest is margin for data sets of a
# few examples.
_ROUNDS = 8
_BLOCK = 4096
"""Positions that are permuted at a time: an id then costs a fifth of what it costs in ranges of 256."""
_BLOCKS = 8
"""Blocks that are remembered: an epoch's end, the next one's beginning, and leases that came back."""


class Order:
    """The order of every epoch: a Feistel network whose two digits are a position's row and column.

    Position = row * columns + column. Each round adds to one digit a keyed random function of the other,
    modulo that digit's base, which is a bijection of the grid whatever the function. The grid has fewer than
    `columns` cells too many; a position that lands on one of them walks on along its cycle until it is back
    inside (cycle walking), so the permutation is of exactly num_examples.
    """

    def __init__(self, num_examples: int, seed: int) -> None:
        if not 1 <= num_examples <= 2**62:
            raise ValueError(f"an order needs 1 to 2^62 examples, got {num_examples}")
        self.num_examples = num_examples
        self.seed = seed
        self._columns = math.isqrt(num_examples - 1) + 1
        self._rows = -(-num_examples // self._columns)
        self._block = functools.lru_cache(_BLOCKS)(self._permuted)

    def ids(self, epoch: int, start: int, stop: int) -> Ids:
        """The example ids at positions start to stop - 1 of the epoch's order."""
        if not 0 <= start <= stop <= self.num_examples:
            raise ValueError(
                f"positions {start} to {stop} are not a range of an order of {self.num_examples} examples"
            )
        if start == stop:
            return np.empty(0, np.int64)
        firsts = range(start // _BLOCK * _BLOCK, stop, _BLOCK)
        # Joined, also where it is one: what is remembered must not change under who writes to its ids.
        return np.concatenate(
            [self._block(epoch, first)[max(0, start - first) : stop - first] for first in firsts]
        )

    def _permuted(self, epoch: int, first: int) -> Ids:
        """The ids of the block that begins at a position."""
        keys = [randomness.key(self.seed, "order", epoch, number) for number in range(_ROUNDS)]
        stop = min(self.num_examples, first + _BLOCK)
        example_ids = self._permute(np.arange(first, stop, dtype=np.int64), keys)
        while (outside := np.flatnonzero(example_ids >= self.num_examples)).size:
            example_ids[outside] = self._permute(example_ids[outside], keys)
        return example_ids

    def _permute(self, cells: Ids, keys: list[int]) -> Ids:
        rows, columns = np.divmod(cells, self._columns)
        for to_rows, to_columns in zip(keys[0::2], keys[1::2], strict=True):
            rows = (rows + _draw(columns, to_rows, self._rows)) % self._rows
            columns = (columns + _draw(rows, to_columns, self._columns)) % self._columns
        return rows * self._columns + columns


def _draw(counters: Ids, stream_key: int, limit: int) -> Ids:
    """A whole number in [0, limit) for each counter, for any limit up to 2^31."""
    return (randomness.mix(counters, stream_key).view(np.uint64) % np.uint64(limit)).view(np.int64)
