"""The history of `selection.history_by = "class"`: a score ranks among the recent ones of its own class.

So a class that the model gets wrong cannot fill the batches: each class keeps about its share. Otherwise it
works like `History`: every candidate enters before it is looked up, and one window over all classes slides by
one.
"""

import numpy as np
from numpy.typing import NDArray

from sbpipe.records import Classes, Floats


class ClassHistory:
    """A window of the last `capacity` finite scores with their classes, oldest first."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._scores: Floats = np.empty(0, np.float32)
        self._classes: Classes = np.empty(0, np.int64)

    def cdf(self, scores: Floats, classes: Classes | None = None) -> Floats:
        """The share of its class in the window strictly below each score. Changes nothing.

        A score that is not finite ranks lowest.
        """
        finite = np.isfinite(scores)
        shares = np.zeros(len(scores), np.float32)
        shares[finite] = self._sliding(scores[finite], _known(classes, len(scores))[finite])
        return shares

    def _sliding(self, scores: Floats, classes: Classes) -> NDArray[np.float32]:
        series, groups = np.concatenate([self._scores, scores]), np.concatenate([self._classes, classes])
        places = np.arange(len(self._scores), len(series))
        shares = np.empty(len(scores), np.float32)
        # A loop over the classes of a pass, which are fewer than its candidates.
        for group in np.unique(classes):
            members, own = np.flatnonzero(groups == group), classes == group
            in_window = (members[:, None] <= places[own]) & (members[:, None] > places[own] - self.capacity)
            is_below = np.less.outer(series[members], scores[own]) & in_window
            shares[own] = is_below.sum(axis=0) / in_window.sum(axis=0)
        return shares

    def push(self, scores: Floats, classes: Classes | None = None) -> None:
        """Remember these scores as the newest."""
        finite = np.isfinite(scores)
        self._scores = np.concatenate([self._scores, scores[finite]])[-self.capacity :]
        self._classes = np.concatenate([self._classes, _known(classes, len(scores))[finite]])[
            -self.capacity :
        ]

    def state(self) -> Floats:
        """The window's scores, oldest first."""
        return self._scores

    def restore(self, scores: Floats, classes: Classes | None = None) -> None:
        """Take over another history's state."""
        self._scores = np.asarray(scores, np.float32)[-self.capacity :]
        self._classes = _known(classes, len(scores))[-self.capacity :].astype(np.int64)


def _known(classes: Classes | None, count: int) -> Classes:
    """The classes; where there are none, all candidates are of one class."""
    return np.zeros(count, np.int64) if classes is None else classes
