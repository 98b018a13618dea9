"""Groups in place of classes where a data set has none: tenths of the scores of examples trained before.

A loop that over-corrects floods its batches with examples of one kind, and starves that kind one delay later.
The kind shows in the scores too. Only trained batches count, so that under a clock the groups do not depend
on when answers arrive. Pure; it must not know what is done with the counts.
"""

import numpy as np

from sbpipe.records import Floats

GROUPS = 10
WINDOW = 1024
"""Scores that the tenths are taken over."""
FEWEST = 200
"""Scores before tenths say anything."""


class ScoreGroups:
    """The last scores of trained examples."""

    def __init__(self) -> None:
        self._scores: Floats = np.empty(0, np.float32)

    def count(self, scores: Floats) -> list[int]:
        """How many examples of a train batch fall into each tenth; [] while too few scores are known."""
        known = scores[np.isfinite(scores)]
        before, self._scores = self._scores, np.concatenate([self._scores, known])[-WINDOW:]
        if len(before) < FEWEST or not len(known):
            return []
        edges = np.quantile(before, np.arange(1, GROUPS) / GROUPS)
        counts: list[int] = np.bincount(np.searchsorted(edges, known), minlength=GROUPS).tolist()
        return counts

    def state(self) -> Floats:
        """For the checkpoint."""
        return self._scores

    def restore(self, state: Floats) -> None:
        """Go on from a checkpoint."""
        self._scores = np.asarray(state, np.float32)
