"""Estimates how long the rest of a study takes, from its finished cells. Pure arithmetic on seconds."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from statistics import fmean

from sbpipe.studies.plan import PlannedCell


def expected_s(cell: PlannedCell, done_s: Mapping[str, tuple[PlannedCell, float]]) -> float | None:
    """Mean seconds of finished cells at its point, else of its arm, else of all; None if there are none."""
    finished = list(done_s.values())
    for alike in (
        [seconds for other, seconds in finished if other.point == cell.point],
        [seconds for other, seconds in finished if other.arm == cell.arm],
        [seconds for _, seconds in finished],
    ):
        if alike:
            return fmean(alike)
    return None


@dataclass(frozen=True)
class Running:
    """A running cell: the seconds so far and, once it knows them, the seconds left."""

    cell: PlannedCell
    elapsed_s: float
    left_s: float | None


def time_left_s(
    running: Sequence[Running],
    waiting: Sequence[PlannedCell],
    done_s: Mapping[str, tuple[PlannedCell, float]],
    *,
    jobs: int = 1,
    alone: Set[str] = frozenset(),
) -> float | None:
    """Seconds until the last cell is done, with `jobs` at a time except for those in `alone`.

    A running cell's own estimate is used once it has one. Before any cell is finished, waiting cells are
    expected to take as long as the running ones. None while nothing is known.
    """
    left_s = {one.cell.cell: own for one in running if (own := _own_left_s(one, done_s)) is not None}
    if len(left_s) < len(running) or not running:
        return None
    guess_s = fmean(one.elapsed_s + left_s[one.cell.cell] for one in running)
    rest_s = {
        cell.cell: guess_s if (known := expected_s(cell, done_s)) is None else known for cell in waiting
    }
    # Cells side by side share the time; one that runs alone does not.
    shared_s = sum(seconds / (1 if name in alone else jobs) for name, seconds in (left_s | rest_s).items())
    # The study cannot end before the slowest cell that runs now.
    return max(shared_s, *left_s.values())


def _own_left_s(one: Running, done_s: Mapping[str, tuple[PlannedCell, float]]) -> float | None:
    whole_s = expected_s(one.cell, done_s)
    return (
        one.left_s
        if one.left_s is not None
        else (None if whole_s is None else max(0.0, whole_s - one.elapsed_s))
    )
