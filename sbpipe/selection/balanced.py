"""Class balance for policies that do not rank by class themselves: a score counts as the score of equal rank
among all. Wraps any policy.

Where a share F of its class's recent scores lies below a score, the policy sees the value below which a share
F of all recent scores lies. Every class then has the same scores to offer, so whatever the policy makes of
them keeps each class at about the rate of all, as long as the window has some twenty scores of it: of n
scores none is above a share (n - 1) / n.
"""

import numpy as np

from sbpipe.config import SelectionConfig
from sbpipe.records import Classes, Floats
from sbpipe.selection.adjusted import Adjusted
from sbpipe.selection.by_class import ClassHistory
from sbpipe.selection.policy import Policy


class Balanced(Adjusted):
    """`selection.history_by = "class"` for `rank`, `topk`, `rho` and `kath18`, and for any policy behind a
    guard against outliers.

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
