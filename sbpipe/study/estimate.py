"""How long the rest of a study will take, from what is done. Pure arithmetic on seconds."""

from collections.abc import Mapping, Sequence
from statistics import fmean

from sbpipe.study.plan import PlannedCell


def expected_s(cell: PlannedCell, done_s: Mapping[str, tuple[PlannedCell, float]]) -> float | None:
    """A cell's seconds: the mean of finished cells at its point, else of its arm, else of all; None if there are none."""
    finished = list(done_s.values())
    for alike in (
        [seconds for other, seconds in finished if other.point == cell.point],
        [seconds for other, seconds in finished if other.arm == cell.arm],
        [seconds for _, seconds in finished],
    ):
        if alike:
            return fmean(alike)
    return None


def time_left_s(
    running: PlannedCell,
    running_s: float,
    running_left_s: float | None,
    waiting: Sequence[PlannedCell],
    done_s: Mapping[str, tuple[PlannedCell, float]],
) -> float | None:
    """Seconds until the last cell is done.

    The running cell is taken at its own word, `running_left_s`, once it has one. Before any cell is finished, the waiting ones
    are expected to take as long as the running one. None while nothing is known at all.
    """
    own_s = expected_s(running, done_s)
    own_left_s = running_left_s if running_left_s is not None else (None if own_s is None else max(0.0, own_s - running_s))
    if own_left_s is None:
        return None
    guess_s = running_s + own_left_s
    return own_left_s + sum(guess_s if (known := expected_s(cell, done_s)) is None else known for cell in waiting)
