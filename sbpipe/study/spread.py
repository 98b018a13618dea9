"""Mean and spread over seeds. Pure."""

import statistics
from collections.abc import Sequence


def mean_of(values: Sequence[float]) -> float | None:
    """The mean; None of nothing."""
    return statistics.fmean(values) if values else None


def geometric_mean_of(ratios: Sequence[float]) -> float | None:
    """The mean of ratios, so that twice as fast and half as fast cancel; None of nothing."""
    return statistics.geometric_mean(ratios) if ratios else None


def sd_of(values: Sequence[float]) -> float | None:
    """The sample standard deviation; None of fewer than two values, for one run has no spread."""
    return statistics.stdev(values) if len(values) > 1 else None
