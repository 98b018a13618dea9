"""One run for the analysis: its curve of test errors over honest time, how it ended, its numbers."""

from dataclasses import dataclass, field
from typing import Any

from sbpipe.runs.curve import Point, curve_of, time_to_target
from sbpipe.runs.numbers import number
from sbpipe.runs.reader import Run
from sbpipe.runs.study.study import Cell, Study

_CURVE = tuple(Point.__dataclass_fields__)


@dataclass(frozen=True)
class Trial:
    """One run of an arm."""

    name: str
    seed: int | None
    status: str
    """`finished`, `failed`, `unfinished` (running, or dead), or `planned` if it has not begun."""
    curve: list[Point]
    numbers: dict[str, Any]
    """Its summary, with the names of `docs/events.md`."""
    notes: list[str] = field(default_factory=list)
    beside: int = 0
    """Other cells that ran at the same time."""

    @property
    def is_finished(self) -> bool:
        """Whether the run finished, so that its last error is final."""
        return self.status == "finished"

    @property
    def final_error(self) -> float | None:
        """The test error at the end; None unless it finished."""
        if not self.is_finished:
            return None
        stated = self.number("eval.error")
        return stated if stated is not None else self.curve[-1].error if self.curve else None

    @property
    def time_s(self) -> float | None:
        """Seconds to its last evaluation, start-up included, measuring excluded."""
        return self.curve[-1].time_s if self.curve else None

    @property
    def devices(self) -> int:
        """Devices held during the run: one in mode inline, else two, unless the run says otherwise."""
        return int(self.number("devices") or (1 if self.numbers.get("mode") == "inline" else 2))

    def time_to(self, error: float | None) -> float | None:
        """Seconds until the first evaluation at or below an error; None if it was never reached."""
        return None if error is None else time_to_target(self.curve, error)

    def number(self, name: str) -> float | None:
        """A number of its summary."""
        return number(self.numbers, name)


def trial_of_run(run: Run, name: str) -> Trial:
    """A run directory as a trial."""
    status = str(run.summary.get("status") or ("failed" if run.of("failed") else "unfinished"))
    curve, notes = curve_of(run)
    seed = run.config.get("seed", run.summary.get("seed"))
    return Trial(name, seed, status, curve, run.summary, notes)


def trial_of_cell(cell: Cell, study: Study, name: str) -> Trial:
    """A study's cell as a trial, begun or not."""
    state = cell.state()
    # `running` was noted when the cell began; its process may have died since.
    status = str(cell.row.get("status") or state.get("status") or "planned").replace("running", "unfinished")
    said = state.get("error") or cell.row.get("failure")
    reasons = [f"says: {str(said).splitlines()[0]}"] if said else []
    curve, numbers = _stated_curve(cell, study), cell.row
    # The study's own curves save reading every event again, and exist even if only its results were kept.
    if not curve and status != "planned" and cell.path.is_dir():
        run = cell.run()
        curve, notes = curve_of(run, state.get("started"))
        numbers = {**run.summary, **cell.row}
        reasons += notes
    return Trial(name, cell.seed, status, curve, numbers, reasons, int(state.get("beside") or 0))


def _stated_curve(cell: Cell, study: Study) -> list[Point]:
    """The curve in `results.json`; [] if it is missing or incomplete."""
    rows = study.analysis.get("arms", {}).get(cell.arm, {}).get("curves", {}).get(str(cell.seed), [])
    if not all(row.get(name) is not None for row in rows for name in _CURVE):
        return []
    return [Point(**{name: row[name] for name in _CURVE}) for row in rows]
