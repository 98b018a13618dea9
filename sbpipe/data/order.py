"""The epoch order: which example is at which position of an epoch, without a list of all of them in memory.

It is a keyed permutation. The ids at a range of positions cost O(range) time and the memory of a few blocks,
for any size of data set, and every process that knows the seed agrees. It must not know what the ids stand
for, nor which of them are kept.

A data set in shards is read fastest shard by shard. Its order shuffles the shards, then the examples within a
window of several shards: at any time only these shards are read, and every example still appears once an
epoch. The fewer shards a window has, the more alike are its examples.
"""

import functools
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from sbpipe import randomness
from sbpipe.config import Config

Ids = NDArray[np.int64]

# Luby and Rackoff need four rounds for a permutation that looks random; the others are a margin for tiny data
# sets.
_ROUNDS = 8
_BLOCK = 4096
"""Positions permuted at a time: an id costs a fifth of its cost in ranges of 256."""
_BLOCKS = 8
"""Cached blocks: an epoch's end, the next one's beginning, and leases that came back."""


class Permutation:
    """A shuffled 0, 1, ... size - 1: a Feistel network whose two digits are a place's row and column.

    Place = row * columns + column. Each round adds to one digit a keyed random function of the other, modulo
    that digit's base: for any function this is a bijection of the grid. The grid has up to `columns` - 1
    cells too many. A place that lands on one of them is permuted again until it is inside (cycle walking), so
    the permutation has exactly `size` elements.
    """

    def __init__(self, size: int, keys: list[int]) -> None:
        self.size = size
        self._keys = keys
        self._columns = math.isqrt(size - 1) + 1
        self._rows = -(-size // self._columns)

    def of(self, places: Ids) -> Ids:
        """The values at these places."""
        return self._walked(self._permute, places)

    def place_of(self, value: int) -> int:
        """The place of a value."""
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
    """The order of every epoch; shards have `block` examples (0 = no shards), `window` shards are mixed."""

    def __init__(self, num_examples: int, seed: int, *, block: int = 0, window: int = 1) -> None:
        if not 1 <= num_examples <= 2**62:
            raise ValueError(f"an order needs 1 to 2^62 examples, got {num_examples}")
        self.num_examples = num_examples
        self.seed = seed
        # One window over all examples is an order without shards.
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
        # Joined even for one block: it makes a copy, so that callers cannot write to the cache.
        return np.concatenate(
            [self._block(epoch, first)[max(0, start - first) : stop - first] for first in firsts]
        )

    def _permuted(self, epoch: int, first: int) -> Ids:
        """The ids of the block that begins at position `first`."""
        stop = min(self.num_examples, first + _BLOCK)
        if self._shards is not None:
            return self._shards.ids(epoch, first, stop)
        keys = _keys(self.seed, "order", epoch)
        return Permutation(self.num_examples, keys).of(np.arange(first, stop, dtype=np.int64))


class _Shards:
    """The order of a data set in shards of `block` examples; the last shard may be shorter."""

    def __init__(self, num_examples: int, seed: int, block: int, window: int) -> None:
        self._num_examples, self._seed, self._block, self._window = num_examples, seed, block, window
        self._num_shards = -(-num_examples // block)
        self._missing = self._num_shards * block - num_examples
        """How many fewer examples the last shard has."""

    def ids(self, epoch: int, start: int, stop: int) -> Ids:
        """The ids at a range of positions, window by window."""
        shuffled = Permutation(self._num_shards, _keys(self._seed, "order.shards", epoch))
        # The window with the short shard is shorter, so all later windows begin earlier.
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
        # Sorted, the short shard is the last one, so a place's shard is found by division.
        shards.sort()
        mixed = Permutation(size, _keys(self._seed, "order.window", epoch, window)).of(places)
        return shards[mixed // self._block] * self._block + mixed % self._block


def _keys(seed: int, purpose: str, *numbers: int) -> list[int]:
    return [randomness.key(seed, purpose, *numbers, number) for number in range(_ROUNDS)]


def _draw(counters: Ids, stream_key: int, limit: int) -> Ids:
    """A whole number in [0, limit) for each counter, for any limit up to 2^31."""
    bits, base = randomness.mix(counters, stream_key).view(np.uint64), np.uint64(limit)
    # The remainder in a third of the time of `%`: NumPy divides by a scalar with multiplications only.
    return (bits - bits // base * base).view(np.int64)


def _wrapped(sums: Ids, limit: int) -> Ids:
    """The remainders of sums of two numbers below the limit."""
    unsigned = sums.view(np.uint64)
    # For sums below the limit the unsigned subtraction wraps to a huge number.
    wrapped: Ids = np.minimum(unsigned, unsigned - np.uint64(limit)).view(np.int64)
    return wrapped
