"""Class balance for policies that do not rank by class themselves. Knows no policy, and wraps any.

Where a share F of its class's recent scores lies below a score, the policy sees the value below which a share
F of all recent scores lies. Every class then has the same scores to offer, so each is kept at about the rate
of all. It takes some twenty scores of a class in the window: of n scores none is above a share (n - 1) / n.
"""

import numpy as np

from sbpipe.config import SelectionConfig
from sbpipe.records import Classes, Floats
from sbpipe.selection.adjustment import ScoreAdjustment
from sbpipe.selection.class_history import ClassHistory
from sbpipe.selection.policy import Policy


class ClassBalance(ScoreAdjustment):
    """`selection.history_by = "class"` for policies that cannot rank by class, or stand behind a guard.

    Within a class the order stays, but for what the sliding of the window changes between candidates of one
    pass.
    """

    def __init__(self, policy: Policy, config: SelectionConfig) -> None:
        super().__init__(policy, ClassHistory(config.history))

    def adjust(self, scores: Floats, classes: Classes | None) -> Floats:
        """The score of equal rank among all; what is not finite stays so."""
        shares = self._history.cdf(scores, classes)
        seen = np.quantile(self._history.state(), shares).astype(np.float32)
        return np.where(np.isfinite(scores), seen, scores)
