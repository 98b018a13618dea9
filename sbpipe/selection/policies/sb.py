"""`sb`: Selective-Backprop as in the paper (equation 1, Algorithm 2): keep probability = cdf(score)^beta."""

import numpy as np

from sbpipe.config import TRAITS, SelectionConfig
from sbpipe.records import Classes, Floats
from sbpipe.selection.class_history import ClassHistory
from sbpipe.selection.draws import independent
from sbpipe.selection.history import History
from sbpipe.selection.policies.base import HistoryPolicy


class SelectiveBackprop(HistoryPolicy):
    """High scores are kept more often.

    With scores spread evenly over the cdf the mean of cdf^beta is 1 / (beta + 1), so beta = 1/keep - 1 keeps
    a share `keep`.
    """

    traits = TRAITS["sb"]
    draw = staticmethod(independent)

    def __init__(self, config: SelectionConfig) -> None:
        self._history = (ClassHistory if config.history_by == "class" else History)(config.history)

    def keep_probability(
        self, scores: Floats, classes: Classes | None = None, *, keep: float, strength: float = 1.0
    ) -> Floats:
        """cdf^beta; a score that is not finite is never kept."""
        probability: Floats = self._history.cdf(scores, classes) ** np.float32(1.0 / keep - 1.0)
        # Their cdf is 0, but with keep = 1 beta is 0 too, and 0^0 = 1 would keep them.
        probability[~np.isfinite(scores)] = 0.0
        return probability
