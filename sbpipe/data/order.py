"""The epoch order: which example stands at which position of an epoch, without ever holding a list of them.

A keyed permutation, so that the ids at any range of positions cost O(range) time and the memory of a few
blocks, whatever the size of the data set, and every process that knows the seed agrees. It must not know what
the ids stand for, nor which of them are kept.

A data set in shards is read fastest shard by shard. Its order shuffles the shards, then the examples of a
window of so many shards at a time: what is read at one time lies in these shards, and every example has its
place in an epoch as before. The fewer shards a window has, the more alike are its examples.
"""

import functools
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from sbpipe import randomness
from sbpipe.config import Config

Ids = NDArray[np.int64]

# Luby and Rackoff need four rounds for a permutation that looks random; the rest is margin for data sets of a
# few examples.
_ROUNDS = 8
_BLOCK = 4096
"""Positions that are permuted at a time: an id then costs a fifth of what it costs in ranges of 256."""
_BLOCKS = 8
"""Blocks that are remembered: an epoch's end, the next one's beginning, and leases that came back."""


class Permutation:
    """A shuffled 0, 1, ... size - 1: a Feistel network whose two digits are a place's row and column.

    Place = row * columns + column. Each round adds to one digit a keyed random function of the other, modulo
    that digit's base, which is a bijection of the grid whatever the function. The grid has fewer than
    `columns` cells too many; a place that lands on one of them walks on along its cycle until it is back
    inside (cycle walking), so the permutation is of exactly `size`.
    """

    def __init__(self, size: int, keys: list[int]) -> None:
        self.size = size
        self._keys = keys
        self._columns = math.isqrt(size - 1) + 1
        self._rows = -(-size // self._columns)

    def of(self, places: Ids) -> Ids:
        """What stands at these places."""
        return self._walked(self._permute, places)

    def place_of(self, value: int) -> int:
        """Where a value stands."""
        return int(self._walked(self._undo, np.array([value], np.int64))[0])

    def _walked(self, step: Callable[[Ids], Ids], cells: Ids) -> Ids:
        cells = step(cells)
        while (outside := np.flatnonzero(cells >= self.size)).size:
            cells[outside] = step(cells[outside])
        return cells

    def _permute(self, cells: Ids) -> Ids:
        rows, columns = np.divmod(cells, self._columns)
        for to_rows, to_columns in zip(self._keys[0::2], self._keys[1::2], strict=True):
            rows = _wrapped(rows + _draw(columns, to_rows, self._rows), self._rows)
            columns = _wrapped(columns + _draw(rows, to_columns, self._columns), self._columns)
        return rows * self._columns + columns

    def _undo(self, cells: Ids) -> Ids:
        rows, columns = np.divmod(cells, self._columns)
        for to_rows, to_columns in zip(self._keys[-2::-2], self._keys[::-2], strict=True):
            columns = (columns - _draw(rows, to_columns, self._columns)) % self._columns
            rows = (rows - _draw(columns, to_rows, self._rows)) % self._rows
        return rows * self._columns + columns


class Order:
    """The order of every epoch; `block` examples make a shard (0 = none do), `window` shards are mixed."""

    def __init__(self, num_examples: int, seed: int, *, block: int = 0, window: int = 1) -> None:
        if not 1 <= num_examples <= 2**62:
            raise ValueError(f"an order needs 1 to 2^62 examples, got {num_examples}")
        self.num_examples = num_examples
        self.seed = seed
        # One window over everything is an order without shards.
        is_sharded = 0 < block * window < num_examples
        self._shards = _Shards(num_examples, seed, block, window) if is_sharded else None
        self._block = functools.lru_cache(_BLOCKS)(self._permuted)

    @classmethod
    def of(cls, config: Config, num_examples: int) -> "Order":
        """The order that a run's settings ask for."""
        return cls(num_examples, config.seed, block=config.data.block, window=config.data.window)

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
        stop = min(self.num_examples, first + _BLOCK)
        if self._shards is not None:
            return self._shards.ids(epoch, first, stop)
        keys = _keys(self.seed, "order", epoch)
        return Permutation(self.num_examples, keys).of(np.arange(first, stop, dtype=np.int64))


class _Shards:
    """The order of a data set in shards of `block` examples, of which the last may be shorter."""

    def __init__(self, num_examples: int, seed: int, block: int, window: int) -> None:
        self._num_examples, self._seed, self._block, self._window = num_examples, seed, block, window
        self._num_shards = -(-num_examples // block)
        self._missing = self._num_shards * block - num_examples
        """Examples that the last shard has less than the others."""

    def ids(self, epoch: int, start: int, stop: int) -> Ids:
        """The ids at a range of positions, window by window."""
        shuffled = Permutation(self._num_shards, _keys(self._seed, "order.shards", epoch))
        # The window that holds the short shard is shorter, so all after it begin earlier.
        short_window = shuffled.place_of(self._num_shards - 1) // self._window
        found = []
        while start < stop:
            window = self._window_at(start, short_window)
            first, end = self._span(window, short_window)
            part = np.arange(start - first, min(stop, end) - first, dtype=np.int64)
            found.append(self._in_window(epoch, window, end - first, shuffled, part))
            start = min(stop, end)
        return np.concatenate(found)

    def _window_at(self, position: int, short_window: int) -> int:
        window = position // (self._window * self._block)
        if window < short_window:
            return window
        return max(short_window, (position + self._missing) // (self._window * self._block))

    def _span(self, window: int, short_window: int) -> tuple[int, int]:
        """The positions that a window begins at and ends before."""
        size = self._window * self._block
        first = window * size - (self._missing if window > short_window else 0)
        end = (window + 1) * size - (self._missing if window >= short_window else 0)
        return first, min(end, self._num_examples)

    def _in_window(self, epoch: int, window: int, size: int, shuffled: Permutation, places: Ids) -> Ids:
        last = min((window + 1) * self._window, self._num_shards)
        shards = shuffled.of(np.arange(window * self._window, last, dtype=np.int64))
        # Sorted, the short one is the last, and a place's shard is a division.
        shards.sort()
        mixed = Permutation(size, _keys(self._seed, "order.window", epoch, window)).of(places)
        return shards[mixed // self._block] * self._block + mixed % self._block


def _keys(seed: int, purpose: str, *numbers: int) -> list[int]:
    return [randomness.key(seed, purpose, *numbers, number) for number in range(_ROUNDS)]


def _draw(counters: Ids, stream_key: int, limit: int) -> Ids:
    """A whole number in [0, limit) for each counter, for any limit up to 2^31."""
    bits, base = randomness.mix(counters, stream_key).view(np.uint64), np.uint64(limit)
    # The remainder, in a third of the time of `%`: NumPy divides by one number with multiplications alone.
    return (bits - bits // base * base).view(np.int64)


def _wrapped(sums: Ids, limit: int) -> Ids:
    """The remainders of sums of two numbers below the limit."""
    unsigned = sums.view(np.uint64)
    # What is below the limit becomes huge by the subtraction.
    wrapped: Ids = np.minimum(unsigned, unsigned - np.uint64(limit)).view(np.int64)
    return wrapped
