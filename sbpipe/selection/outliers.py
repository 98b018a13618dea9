"""A guard against wrong labels: scores beyond a quantile of the recent ones count as the quantile, or not at all. Wraps any policy."""

import numpy as np
from numpy.typing import NDArray

from sbpipe.config import SelectionConfig
from sbpipe.records import Classes, Floats
from sbpipe.selection.history import History
from sbpipe.selection.policy import Policy
from sbpipe.selection.within import Mask


class OutlierGuard:
    """The highest scores are the most wanted, and the most often wrong: with noisy labels they are the noise.

    The quantile is that of the last `selection.history` scores as they came, so that a guard that has cut does not cut ever deeper.
    """

    def __init__(self, policy: Policy, config: SelectionConfig) -> None:
        self._policy = policy
        self.needs_scores = policy.needs_scores
        self._skips = config.outliers == "skip"
        self._quantile = config.outlier_quantile
        self._history = History(config.history)

    def keep_probability(self, scores: Floats, classes: Classes | None = None, *, strength: float = 1.0) -> Floats:
        """The policy's, of scores that are cut off at the quantile; with "skip", those beyond it are not kept."""
        known = self._history.state()
        if not len(known):
            return self._policy.keep_probability(scores, classes, strength=strength)
        limit = np.quantile(known, self._quantile).astype(np.float32)
        beyond = scores > limit
        judged = np.where(beyond, np.float32(np.nan) if self._skips else limit, scores)
        return self._policy.keep_probability(judged, classes, strength=strength)

    def draw(self, probability: Floats, uniform: NDArray[np.float64]) -> Mask:
        """As the policy draws."""
        return self._policy.draw(probability, uniform)

    def consider(self, scores: Floats, classes: Classes | None = None) -> None:
        """Remember the scores as they came."""
        self._history.push(scores)
        self._policy.consider(scores, classes)

    def state(self) -> Floats:
        """The history, oldest first."""
        return self._history.state()

    def restore(self, state: Floats, classes: Classes | None = None) -> None:
        """Take over a history."""
        self._history.restore(state)
        self._policy.restore(state, classes)
