"""Class balance for policies that do not rank by class themselves. Knows no policy, and wraps any.

A score with a share F of its class's recent scores below it is replaced by the value with a share F of all
recent scores below it. Then the scores of every class have the same distribution, so each class is kept at
about the same rate. This needs some twenty scores of a class in the window: the highest of n scores has F =
(n - 1) / n at most.
"""

import numpy as np

from sbpipe.config import SelectionConfig
from sbpipe.records import Classes, Floats
from sbpipe.selection.adjustment import ScoreAdjustment
from sbpipe.selection.class_history import ClassHistory
from sbpipe.selection.policy import Policy


class ClassBalance(ScoreAdjustment):
    """`selection.history_by = "class"` for policies that cannot rank by class, or have an outlier guard.

    The order within a class stays, except for changes as the window slides over the candidates of a pass.
    """

    def __init__(self, policy: Policy, config: SelectionConfig) -> None:
        super().__init__(policy, ClassHistory(config.history))

    def adjust(self, scores: Floats, classes: Classes | None) -> Floats:
        """The score of equal rank among all; scores that are not finite stay unchanged."""
        shares = self._history.cdf(scores, classes)
        seen = np.quantile(self._history.state(), shares).astype(np.float32)
        return np.where(np.isfinite(scores), seen, scores)
