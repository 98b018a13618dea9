"""One run as a comparison sees it: its curve of test errors over honest time, how it ended, its numbers.
Knows no picture.
"""

from dataclasses import dataclass, field
from typing import Any

from sbpipe.runs import Run
from sbpipe.runs.curve import Point, curve_of, time_to_target
from sbpipe.runs.numbers import number


@dataclass(frozen=True)
class Trial:
    """One run of an arm."""

    name: str
    seed: int | None
    status: str
    """`finished`, `failed`, `unfinished` (at work, or dead), or `planned` if it has not begun."""
    curve: list[Point]
    numbers: dict[str, Any]
    """Its summary, by the names of `docs/events.md`."""
    notes: list[str] = field(default_factory=list)

    @property
    def is_finished(self) -> bool:
        """Whether it came to its end, so that its last error is a final one."""
        return self.status == "finished"

    @property
    def final_error(self) -> float | None:
        """The test error at the end; None unless it finished."""
        if not self.is_finished:
            return None
        stated = number(self.numbers, "eval.error")
        return stated if stated is not None else self.curve[-1].error if self.curve else None

    def time_to(self, error: float) -> float | None:
        """Seconds until the first evaluation at or below an error; None if it never got there."""
        return time_to_target(self.curve, error)


def trial_of_run(run: Run, name: str) -> Trial:
    """A run directory as a trial."""
    status = str(run.summary.get("status") or ("failed" if run.of("failed") else "unfinished"))
    curve, notes = curve_of(run)
    seed = run.config.get("seed", run.summary.get("seed"))
    return Trial(name, seed, status, curve, run.summary, notes)
