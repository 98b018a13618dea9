"""A guard against wrong labels: scores beyond a quantile of the recent ones count as the quantile, or not at
all. Wraps any policy.
"""

import numpy as np

from sbpipe.config import SelectionConfig
from sbpipe.records import Classes, Floats
from sbpipe.selection.adjusted import Adjusted
from sbpipe.selection.history import History
from sbpipe.selection.policy import Policy


class OutlierGuard(Adjusted):
    """The highest scores are the most wanted, and the most often wrong: with noisy labels they are the
    noise.
    """

    def __init__(self, policy: Policy, config: SelectionConfig) -> None:
        super().__init__(policy, History(config.history))
        self._skips = config.outliers == "skip"
        self._quantile = config.outlier_quantile

    def adjust(self, scores: Floats, classes: Classes | None) -> Floats:
        """Cut off at the quantile; with "skip", those beyond it are no scores."""
        limit = np.quantile(self._history.state(), self._quantile).astype(np.float32)
        return np.where(scores > limit, np.float32(np.nan) if self._skips else limit, scores)
