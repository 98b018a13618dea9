"""The score table: what is known of every example, and the last scores in the order they came.

From it come the history of a new selector, the fallback, and the pictures of easy and hard examples. Pure.
"""

import numpy as np
from numpy.typing import NDArray

from sbpipe.records import Classes, Floats, Ids, Selection

_COLUMNS = ("scores", "stamp", "keep_probability", "times_considered", "times_kept")


class ScoreTable:
    """20 bytes per example; pages that were never written cost nothing.

    What is irreducible of an example's loss, where that is known, is taken off before a policy judges it;
    what is recorded stays the loss.
    """

    def __init__(
        self,
        num_examples: int,
        history: int,
        *,
        irreducible: Floats | None = None,
        classes: Classes | None = None,
    ) -> None:
        self._irreducible = irreducible
        self.classes = classes
        self.scores: Floats = np.zeros(num_examples, np.float32)
        self.stamp: NDArray[np.int32] = np.zeros(num_examples, np.int32)  # version + 1; 0 = never scored
        self.keep_probability: Floats = np.zeros(num_examples, np.float32)
        self.times_considered: NDArray[np.int32] = np.zeros(num_examples, np.int32)
        self.times_kept: NDArray[np.int32] = np.zeros(num_examples, np.int32)
        self._capacity = history
        self.recent: Floats = np.empty(0, np.float32)
        self.recent_ids: Ids = np.empty(0, np.int64)

    def record(self, example_ids: Ids, selection: Selection) -> None:
        """Remember what a selection says of the examples it considered; only finite scores are scores."""
        self.keep_probability[example_ids] = selection.keep_probability
        self.times_considered[example_ids] += 1
        self.times_kept[example_ids[selection.kept]] += 1
        finite = np.isfinite(selection.scores)
        example_ids, scores = example_ids[finite], selection.scores[finite]
        self.scores[example_ids] = scores
        self.stamp[example_ids] = selection.version + 1
        # The order in which scores arrived is the history's: a new selector continues from exactly this.
        self.recent = np.concatenate([self.recent, scores])[-self._capacity :]
        self.recent_ids = np.concatenate([self.recent_ids, example_ids])[-self._capacity :]

    def judged(self, example_ids: Ids, scores: Floats) -> Floats:
        """What a policy judges of the scores of these examples."""
        return scores if self._irreducible is None else scores - self._irreducible[example_ids]

    @property
    def history(self) -> tuple[Floats, NDArray[np.int32] | None]:
        """The last scores and, where they matter, their classes: what a new selector's policy needs."""
        classes = None if self.classes is None else self.classes[self.recent_ids].astype(np.int32)
        return self.judged(self.recent_ids, self.recent), classes

    def lookup(self, example_ids: Ids) -> tuple[Floats, Ids]:
        """Last scores (NaN = never scored) and their versions."""
        stamp = self.stamp[example_ids]
        return np.where(stamp > 0, self.scores[example_ids], np.float32(np.nan)), stamp.astype(np.int64) - 1

    def state(self) -> dict[str, NDArray[np.generic]]:
        """For the checkpoint."""
        return {name: getattr(self, name).copy() for name in _COLUMNS} | {
            "recent": self.recent,
            "recent_ids": self.recent_ids,
        }

    def restore(self, state: dict[str, NDArray[np.generic]]) -> None:
        """Go on from a checkpoint."""
        for name in _COLUMNS:
            getattr(self, name)[:] = state[name]
        self.recent = state["recent"].astype(np.float32)
        self.recent_ids = state["recent_ids"].astype(np.int64)
