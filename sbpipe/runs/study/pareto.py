"""Pareto-optimal points of time and error, and each arm's share of them. Pure."""

from collections.abc import Hashable, Sequence
from typing import TypeVar

from sbpipe.runs.curve import Point

Label = TypeVar("Label", bound=Hashable)


def frontier(points: Sequence[tuple[float, float]]) -> list[bool]:
    """Whether each (time, error) is Pareto-optimal: no other is as good in both and better in one."""
    optimal = [False] * len(points)
    lowest = float("inf")
    last: tuple[float, float] | None = None
    # By time, a point is optimal if its error is below all before it, or it equals the last optimal point.
    for index in sorted(range(len(points)), key=lambda index: points[index]):
        if points[index][1] < lowest or points[index] == last:
            optimal[index] = True
            lowest, last = points[index][1], points[index]
    return optimal


def pareto_shares(curves: Sequence[tuple[Label, Sequence[Point]]]) -> dict[Label, float]:
    """Each label's share of all Pareto-optimal evaluations; labels without one have 0."""
    points = [(label, (point.time_s, point.error)) for label, curve in curves for point in curve]
    flags = frontier([at for _, at in points])
    owners = [label for (label, _), is_optimal in zip(points, flags, strict=True) if is_optimal]
    return {label: owners.count(label) / len(owners) if owners else 0.0 for label, _ in curves}
