"""Mean and spread over seeds, and pairs of equal seeds. Pure."""

import statistics
from collections.abc import Mapping, Sequence

BySeed = Mapping[int | None, float]
"""One number per seed; the seed is None if the run does not state it."""


def mean_of(values: Sequence[float]) -> float | None:
    """The mean; None without values."""
    return statistics.fmean(values) if values else None


def geometric_mean_of(ratios: Sequence[float]) -> float | None:
    """The geometric mean, so that twice as fast and half as fast cancel; None without values."""
    return statistics.geometric_mean(ratios) if ratios else None


def sd_of(values: Sequence[float]) -> float | None:
    """The sample standard deviation; None for fewer than two values: one run has no spread."""
    return statistics.stdev(values) if len(values) > 1 else None


def spread_of(name: str, values: Sequence[float]) -> dict[str, float | None]:
    """Mean and standard deviation, as `NAME_mean` and `NAME_sd`."""
    return {f"{name}_mean": mean_of(values), f"{name}_sd": sd_of(values)}


def paired(ours: BySeed, theirs: BySeed) -> list[tuple[float, float]]:
    """The pairs of equal seeds; seeds that one side lacks are left out."""
    return [(value, theirs[seed]) for seed, value in ours.items() if seed in theirs]
