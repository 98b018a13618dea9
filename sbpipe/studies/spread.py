"""Mean and spread over seeds, and what a time costs. Pure."""

import statistics
from collections.abc import Mapping, Sequence


def mean_of(values: Sequence[float]) -> float | None:
    """The mean; None of nothing."""
    return statistics.fmean(values) if values else None


def geometric_mean_of(ratios: Sequence[float]) -> float | None:
    """The mean of ratios, so that twice as fast and half as fast cancel; None of nothing."""
    return statistics.geometric_mean(ratios) if ratios else None


def sd_of(values: Sequence[float]) -> float | None:
    """The sample standard deviation; None of fewer than two values, for one run has no spread."""
    return statistics.stdev(values) if len(values) > 1 else None


def cost(time_s: float, devices: int, price: Mapping[str, float] | None) -> float | None:
    """What a run of so many seconds costs: the trainer's device, and every further one at the selector's
    price.
    """
    if price is None:
        return None
    return time_s / 3600.0 * (price["trainer"] + (devices - 1) * price["selector"])


def target_error(factor: float, reference: float | None) -> float | None:
    """A target error; None without a reference, and where it would be no target: everybody is below 100 %."""
    return None if reference is None or factor * reference >= 1.0 else factor * reference
