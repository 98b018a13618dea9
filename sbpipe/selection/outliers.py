"""A guard against wrong labels: the highest of the recent scores are limited, or removed."""

import numpy as np

from sbpipe.config import SelectionConfig
from sbpipe.records import Classes, Floats
from sbpipe.selection.adjustment import ScoreAdjustment
from sbpipe.selection.history import History
from sbpipe.selection.policy import Policy


class OutlierGuard(ScoreAdjustment):
    """Limits the highest scores: they are kept most often, and with noisy labels they are mostly noise."""

    def __init__(self, policy: Policy, config: SelectionConfig) -> None:
        super().__init__(policy, History(config.history))
        self._skips = config.outliers == "skip"
        self._quantile = config.outlier_quantile

    def adjust(self, scores: Floats, classes: Classes | None) -> Floats:
        """Limit scores to the quantile; with "skip", remove those above it."""
        limit = np.quantile(self._history.state(), self._quantile).astype(np.float32)
        return np.where(scores > limit, np.float32(np.nan) if self._skips else limit, scores)
