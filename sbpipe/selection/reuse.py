"""Score reuse (the paper's Stale-SB): a scoring pass every n-th epoch, remembered scores in between. Pure; knows no model.

In a reuse epoch a candidate is judged by what is remembered of it, and still trained with a fresh forward pass. Who is not remembered, because
another selector scored it or this one is new, is scored.
"""

import numpy as np
from numpy.typing import NDArray

from sbpipe.records import Floats, Ids

SLOWNESS = 0.5
"""Share of the average that stays when a new score comes in."""


class ScoreCache:
    """What is remembered of every example: its last score, or an exponentially weighted average of its scores."""

    def __init__(self, num_examples: int, *, every: int, by: str) -> None:
        self._every = every
        self._is_average = by == "average"
        self._scores: Floats = np.full(num_examples if every > 1 else 0, np.nan, np.float32)

    def is_reuse(self, epoch: int) -> bool:
        """Whether an epoch goes without a scoring pass."""
        return epoch % self._every != 0

    def recall(self, example_ids: Ids, epoch: int) -> tuple[Floats, NDArray[np.bool_]]:
        """What is remembered of these candidates (NaN = nothing), and which of them must be scored."""
        if not self.is_reuse(epoch):
            return np.full(len(example_ids), np.nan, np.float32), np.ones(len(example_ids), bool)
        known = self._scores[example_ids]
        return known, ~np.isfinite(known)

    def remember(self, example_ids: Ids, scores: Floats) -> None:
        """Take in new scores; one that is not finite teaches nothing."""
        if self._every == 1:
            return
        finite = np.isfinite(scores)
        example_ids, scores = example_ids[finite], scores[finite]
        if self._is_average:
            before = self._scores[example_ids]
            mixed = np.float32(SLOWNESS) * before + np.float32(1.0 - SLOWNESS) * scores
            scores = np.where(np.isfinite(before), mixed, scores)
        self._scores[example_ids] = scores
