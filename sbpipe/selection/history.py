"""The last scores, and the share of them strictly below a new one (the paper's Algorithm 2). Knows no policy.

Algorithm 2 adds each score to the history before it looks it up, so every candidate is ranked against a
window that slides by one. Instead of a loop over examples, a block of candidates is ranked at once: against
the sorted window before it, plus its own earlier scores, minus those that have left the window. The result
equals the loop's exactly.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from sbpipe.records import Classes, Floats

BLOCK = 192
"""Candidates ranked at once: the pairwise part costs BLOCK per candidate, the sort history/BLOCK."""


class History:
    """A window of the last `capacity` finite scores, oldest first; it ignores classes."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._scores: Floats = np.empty(0, np.float32)

    def cdf(self, scores: Floats, classes: Classes | None = None) -> Floats:
        """The share of the window strictly below each score, each added before it is looked up.

        Changes nothing. A score that is not finite ranks lowest and takes no place in the window.
        """
        finite = np.isfinite(scores)
        if finite.all():
            return sliding_cdf(self._scores, scores, self.capacity)
        shares = np.zeros(len(scores), np.float32)
        shares[finite] = sliding_cdf(self._scores, scores[finite], self.capacity)
        return shares

    def push(self, scores: Floats, classes: Classes | None = None) -> None:
        """Remember these scores as the newest."""
        finite = scores[np.isfinite(scores)]
        self._scores = np.concatenate([self._scores, finite])[-self.capacity :]

    def state(self) -> Floats:
        """The window, oldest first."""
        return self._scores

    def restore(self, scores: Floats, classes: Classes | None = None) -> None:
        """Take over another history's state."""
        self._scores = np.asarray(scores, np.float32)[-self.capacity :]


def sliding_cdf(window: Floats, scores: Floats, capacity: int) -> Floats:
    """`cdf` of each score in a window of `capacity` that it has just entered."""
    series = np.concatenate([window, scores])
    below = np.empty(len(scores), np.intp)
    # In a block longer than the window its own first scores would leave the window again.
    block = min(BLOCK, capacity)
    for first in range(0, len(scores), block):
        now = len(window) + first
        _count_block(
            series[max(0, now - capacity) : now],
            scores[first : first + block],
            capacity,
            below[first : first + block],
        )
    size = np.minimum(np.arange(len(window) + 1, len(series) + 1), capacity)
    return (below / size).astype(np.float32)


def _count_block(before: Floats, block: Floats, capacity: int, below: NDArray[np.intp]) -> None:
    """How much of its window is strictly below each score of a block, given the window before the block."""
    below[:] = np.searchsorted(np.sort(before), block, side="left")
    below += _count_below(block, block, 0)
    # This many of the oldest scores have left the window by the end of the block; one more with each
    # candidate.
    most_gone = len(before) + len(block) - capacity
    if most_gone > 0:
        below -= _count_below(before[:most_gone], block, most_gone - len(block) + 1)


def _count_below(others: Floats, block: Floats, shift: int) -> NDArray[np.uint8]:
    """For the i-th score of the block, how many of the first i + shift others are strictly below it."""
    # A count is at most BLOCK < 256, so a byte holds it: an eighth of the memory traffic.
    is_below = np.less.outer(others, block)
    is_below &= _first(len(others), len(block), shift)
    counts: NDArray[np.uint8] = np.add.reduce(is_below.view(np.uint8), axis=0, dtype=np.uint8)
    return counts


# Every pass has the same few shapes.
@lru_cache(maxsize=16)
def _first(num_others: int, num_block: int, shift: int) -> NDArray[np.bool_]:
    """Entry (j, i) says whether j is one of the first i + shift."""
    return np.arange(num_others)[:, None] < np.arange(num_block)[None, :] + shift
