"""Score reuse (the paper's Stale-SB): a scoring pass every n-th epoch, remembered scores in between. Pure.

In a reuse epoch a candidate is judged by what is remembered of it, and still trained with a fresh forward
pass. A candidate that is not remembered, because another selector scored it or this one is new, is scored.
"""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sbpipe.records import Floats, Ids
from sbpipe.selection.gaussian_process import GaussianProcess

SLOWNESS = 0.5
"""Share of the average that stays when a new score comes in."""


class ScoreMemory(Protocol):
    """How an example's past scores are remembered and combined."""

    def __init__(self, num_examples: int, keep: float) -> None: ...

    def remember(self, example_ids: Ids, scores: Floats, scored_epoch: int) -> None:
        """Take in new, finite scores from a scored epoch or from the reuse epochs after it."""
        ...

    def recall(self, example_ids: Ids, epoch: int) -> Floats:
        """The scores by which these candidates are judged in a reuse epoch; NaN = not known."""
        ...


class Last:
    """An example's last score."""

    def __init__(self, num_examples: int, keep: float) -> None:
        self._scores: Floats = np.full(num_examples, np.nan, np.float32)

    def remember(self, example_ids: Ids, scores: Floats, scored_epoch: int) -> None:
        """Replace the one before."""
        self._scores[example_ids] = scores

    def recall(self, example_ids: Ids, epoch: int) -> Floats:
        """The score, however old."""
        return self._scores[example_ids]


class Average(Last):
    """An exponentially weighted average of an example's scores."""

    def remember(self, example_ids: Ids, scores: Floats, scored_epoch: int) -> None:
        """Mix them in; a first score is its own average."""
        before = self._scores[example_ids]
        mixed = np.float32(SLOWNESS) * before + np.float32(1.0 - SLOWNESS) * scores
        self._scores[example_ids] = np.where(np.isfinite(before), mixed, scores)


SCORE_MEMORIES: dict[str, type[ScoreMemory]] = {"last": Last, "average": Average, "gaussian": GaussianProcess}


class ScoreCache:
    """Which candidates are scored, and the remembered scores of the others."""

    def __init__(self, num_examples: int, *, every: int, by: str, keep: float) -> None:
        self._every = every
        # Without reuse nothing is ever recalled, so no memory is allocated for the data set.
        self._memory = SCORE_MEMORIES[by](num_examples if every > 1 else 0, keep)

    def is_reuse(self, epoch: int) -> bool:
        """Whether an epoch has no scoring pass."""
        return epoch % self._every != 0

    def recall(self, example_ids: Ids, epoch: int) -> tuple[Floats, NDArray[np.bool_]]:
        """The remembered scores of these candidates (NaN = none), and which of them must be scored."""
        if not self.is_reuse(epoch):
            return np.full(len(example_ids), np.nan, np.float32), np.ones(len(example_ids), bool)
        known = self._memory.recall(example_ids, epoch)
        return known, ~np.isfinite(known)

    def remember(self, example_ids: Ids, scores: Floats, epoch: int) -> None:
        """Take in new scores, except those that are not finite."""
        finite = np.isfinite(scores)
        if self._every == 1 or not finite.any():
            return
        self._memory.remember(example_ids[finite], scores[finite], epoch - epoch % self._every)
