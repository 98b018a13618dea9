"""The result of each cell that has ended. Reads the folder; writes nothing."""

from dataclasses import dataclass
from typing import Any

from sbpipe.runs import read_run
from sbpipe.runs.curve import Point, curve_of
from sbpipe.runs.study.trial import Trial
from sbpipe.studies.folder import State, StudyFolder
from sbpipe.studies.plan import PlannedCell


@dataclass(frozen=True)
class Result:
    """One cell that finished or failed."""

    cell: PlannedCell
    state: State
    summary: dict[str, Any]
    """{} for a failed cell."""
    curve: list[Point]
    environment: dict[str, Any]

    @property
    def is_finished(self) -> bool:
        """Whether its numbers count."""
        return self.state.status == "finished"

    @property
    def trial(self) -> Trial:
        """The cell as a trial of the analysis."""
        state = self.state
        return Trial(
            self.cell.label, self.cell.seed, state.status, self.curve, self.summary, beside=state.beside
        )


def read_result(folder: StudyFolder, cell: PlannedCell, state: State) -> Result:
    """Read the result of a cell."""
    # The numbers of a failed run must not enter a mean.
    if state.status != "finished":
        return Result(cell, state, {}, [], {})
    run = read_run(folder.run_path(cell))
    return Result(cell, state, run.summary, curve_of(run, state.started)[0], run.environment)
