"""The score table: the last score of every example and the version that gave it, and the last scores in the order they came.

From it come the history of a new selector, the fallback, and the pictures of easy and hard examples. Pure.
"""

import numpy as np
from numpy.typing import NDArray

from sbpipe.records import Floats, Ids


class ScoreTable:
    """8 bytes per example; pages that were never written cost nothing."""

    def __init__(self, num_examples: int, history: int) -> None:
        self.scores: Floats = np.zeros(num_examples, np.float32)
        self._stamp: NDArray[np.int32] = np.zeros(num_examples, np.int32)  # version + 1; 0 = never scored
        self._capacity = history
        self.recent: Floats = np.empty(0, np.float32)

    def record(self, example_ids: Ids, scores: Floats, version: int) -> None:
        """Remember scores; those that are not finite are no scores."""
        finite = np.isfinite(scores)
        example_ids, scores = example_ids[finite], scores[finite]
        self.scores[example_ids] = scores
        self._stamp[example_ids] = version + 1
        self.recent = np.concatenate([self.recent, scores])[-self._capacity :]

    def lookup(self, example_ids: Ids) -> tuple[Floats, Ids]:
        """Last scores (NaN = never scored) and their versions."""
        stamp = self._stamp[example_ids]
        return np.where(stamp > 0, self.scores[example_ids], np.float32(np.nan)), stamp.astype(np.int64) - 1

    def state(self) -> dict[str, NDArray[np.generic]]:
        """For the checkpoint."""
        return {"scores": self.scores.copy(), "stamp": self._stamp.copy(), "recent": self.recent}

    def restore(self, state: dict[str, NDArray[np.generic]]) -> None:
        """Go on from a checkpoint."""
        self.scores[:] = state["scores"]
        self._stamp[:] = state["stamp"]
        self.recent = state["recent"].astype(np.float32)
