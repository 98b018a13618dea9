"""Counts of candidates by kind, over a window of the last ones. Knows neither the kinds nor the caller."""

from collections import deque
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray


class CountsWindow:
    """The sum of the newest counts that together cover at least `capacity` candidates, or of all
    while fewer.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._counts: deque[NDArray[np.integer]] = deque()
        self._sizes: deque[int] = deque()
        self.total = 0
        """How many candidates are counted."""
        self.counts: NDArray[np.int64] = np.zeros(0, np.int64)

    def add(self, counts: NDArray[np.integer]) -> None:
        """Count some more candidates; another number of kinds restarts the window."""
        if len(counts) != len(self.counts):
            self._counts.clear()
            self._sizes.clear()
            self.total, self.counts = 0, np.zeros(len(counts), np.int64)
        self._counts.append(counts)
        self._sizes.append(int(counts.sum()))
        self.counts += counts
        self.total += self._sizes[-1]
        while len(self._sizes) > 1 and self.total - self._sizes[0] >= self._capacity:
            self.total -= self._sizes.popleft()
            self.counts -= self._counts.popleft()

    def state(self) -> list[list[int]]:
        """For the checkpoint."""
        return [counts.tolist() for counts in self._counts]

    def restore(self, state: Iterable[Sequence[int]]) -> None:
        """Go on from a checkpoint."""
        for counts in state:
            self.add(np.array(counts, np.int32))
