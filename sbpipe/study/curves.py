"""A run's test error over time, and when it reached a target. Pure, but for reading a run through the logbook.

Time counts from the moment the run's process was started, so start-up is included: importing, loading data, building both roles. Seconds
spent measuring the test error are not, because how often one looks is no part of training. Time is seen at evaluations only:
what is reached between two of them counts from the later one.
"""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sbpipe.logbook import Run


@dataclass(frozen=True)
class Point:
    """One evaluation."""

    time_s: float
    error: float
    trained: int | None = None
    candidates: int | None = None


def curve_of(run: Run, started: float) -> list[Point]:
    """The evaluations of a run whose process was started at wall clock `started`."""
    return [
        Point(
            time_s=round(event["t"] - started - (event.get("evaluate_s") or 0.0), 4),
            error=event["error"],
            trained=event.get("trained"),
            candidates=event.get("candidates"),
        )
        for event in run.of("eval")
        if event.get("error") is not None
    ]


def time_to_target(curve: Iterable[Point], target: float) -> float | None:
    """Seconds until the first evaluation whose error is at most the target; None if there is none."""
    return next((point.time_s for point in curve if point.error <= target), None)


def mean_of(values: Sequence[float]) -> float | None:
    """The mean; None of nothing."""
    return statistics.fmean(values) if values else None


def sd_of(values: Sequence[float]) -> float | None:
    """The sample standard deviation; None of fewer than two values, for one run has no spread."""
    return statistics.stdev(values) if len(values) > 1 else None
