"""Does the loop swing? The variance of class counts over batches, against that of chance for the same shares.

A selector that scores with old weights chases errors that the trainer has already corrected: it floods the
batches with a class, and starves it one delay later. The effect on the class counts is one number, 1.0 where
nothing of the kind happens. Numpy only: the trainer computes it as it goes, a report class by class from the
events.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

WINDOW = 32
"""Batches that a swing is measured over."""
FEWEST = 8
"""Batches before there is a value: the variance of fewer says little."""
_TABLE = 8
"""Windows in a table."""
Counts = NDArray[np.float64]


def spreads(counts: ArrayLike) -> tuple[Counts, Counts]:
    """Per class, the variance of its count over the batches (batches, classes), and the variance that chance
    gives.

    With n_t the size of batch t and m_k the share of class k over all of them: sum_t (c_tk - n_t m_k)^2 / (T
    - 1), and mean(n) m_k (1 - m_k). Needs two batches and one example.
    """
    table = np.asarray(counts, np.float64)
    sizes = table.sum(axis=1)
    size = sizes.sum()
    shares = table.sum(axis=0) / size
    found: Counts = ((table - sizes[:, None] * shares) ** 2).sum(axis=0) / (len(table) - 1)
    chance: Counts = size / len(table) * shares * (1.0 - shares)
    return found, chance


def swing_of(counts: ArrayLike) -> float:
    """Variance of class counts (batches, classes) over that of chance; NaN below 2 batches or 2 classes."""
    table = np.asarray(counts, np.float64)
    if table.ndim != 2 or len(table) < 2 or np.count_nonzero(table.any(axis=0)) < 2:
        return float("nan")
    found, chance = spreads(table)
    return float(found.sum() / chance.sum())


class Swing:
    """The swing over the last batches; its window slides along a longer table, so that a step
    copies one row.
    """

    def __init__(self, window: int = WINDOW) -> None:
        self._window = window
        self._rows: Counts = np.empty((0, 0))
        self._end = 0

    def add(self, counts: Sequence[int] | NDArray[np.integer] | Counts) -> None:
        """Take in how often each class appears in one batch; every batch counts the same classes."""
        if self._end == len(self._rows):
            self._start_table(self._counts, len(counts))
        self._rows[self._end] = counts
        self._end += 1

    def _start_table(self, counts: Counts, num_classes: int) -> None:
        self._rows = np.empty((_TABLE * self._window, num_classes))
        self._end = len(counts)
        self._rows[: self._end] = counts.reshape(-1, num_classes)

    @property
    def _counts(self) -> Counts:
        return self._rows[max(0, self._end - self._window) : self._end]

    @property
    def value(self) -> float | None:
        """The swing of the window; None until it holds enough batches, or if there is only one class."""
        counts = self._counts
        if len(counts) < FEWEST:
            return None
        found = swing_of(counts)
        return found if math.isfinite(found) else None

    def state(self) -> Counts:
        """The window, oldest first."""
        return self._counts.copy()

    def restore(self, state: Counts) -> None:
        """Go on from another one's window."""
        counts = np.asarray(state, np.float64)[-self._window :]
        self._rows, self._end = np.empty((0, 0)), 0
        if len(counts):
            self._start_table(counts, counts.shape[1])
