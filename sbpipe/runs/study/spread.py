"""Mean and spread over seeds, and pairs of equal seeds. Pure."""

import statistics
from collections.abc import Mapping, Sequence

BySeed = Mapping[int | None, float]
"""One number per seed; None is the seed of a run that does not tell it."""


def mean_of(values: Sequence[float]) -> float | None:
    """The mean; None of nothing."""
    return statistics.fmean(values) if values else None


def geometric_mean_of(ratios: Sequence[float]) -> float | None:
    """The mean of ratios, so that twice as fast and half as fast cancel; None of nothing."""
    return statistics.geometric_mean(ratios) if ratios else None


def sd_of(values: Sequence[float]) -> float | None:
    """The sample standard deviation; None of fewer than two values: one run has no spread."""
    return statistics.stdev(values) if len(values) > 1 else None


def spread_of(name: str, values: Sequence[float]) -> dict[str, float | None]:
    """Mean and standard deviation, as `NAME_mean` and `NAME_sd`."""
    return {f"{name}_mean": mean_of(values), f"{name}_sd": sd_of(values)}


def paired(ours: BySeed, theirs: BySeed) -> list[tuple[float, float]]:
    """The pairs of equal seed; a seed that one side lacks is left out."""
    return [(value, theirs[seed]) for seed, value in ours.items() if seed in theirs]
