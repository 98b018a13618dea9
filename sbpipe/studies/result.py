"""What a study knows of each cell that has ended. Reads the folder; writes nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sbpipe.runs import read_run
from sbpipe.runs.curve import Point, curve_of
from sbpipe.runs.numbers import number
from sbpipe.studies.folder import Folder, State
from sbpipe.studies.plan import PlannedCell


@dataclass(frozen=True)
class Result:
    """One cell that finished or failed."""

    cell: PlannedCell
    state: State
    summary: dict[str, Any]
    """{} of a failed cell."""
    curve: list[Point]
    environment: dict[str, Any]

    @property
    def is_finished(self) -> bool:
        """Whether its numbers count."""
        return self.state.status == "finished"

    @property
    def devices(self) -> int:
        """Devices held during the run: one in mode inline, else two, unless the run says otherwise."""
        return int(self.summary.get("devices") or (1 if self.summary.get("mode") == "inline" else 2))

    def number(self, name: str) -> float | None:
        """A number of its summary."""
        return number(self.summary, name)


def num_beside(results: Sequence[Result]) -> int:
    """How many of the cells ran side by side with others."""
    return sum(result.state.beside > 0 for result in results)


def read_result(folder: Folder, cell: PlannedCell, state: State) -> Result:
    """Read what a cell left."""
    if state.status != "finished":
        return Result(cell, state, {}, [], {})
    run = read_run(folder.run_path(cell))
    return Result(cell, state, run.summary, curve_of(run, state.started)[0], run.environment)
