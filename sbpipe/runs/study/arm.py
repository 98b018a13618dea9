"""Trials that differ only in their seed. Pure."""

import json
from dataclasses import dataclass, field
from typing import Any

from sbpipe.runs.study.trial import Trial


@dataclass(frozen=True)
class Arm:
    """One alternative, run with some seeds; in a sweep, at one point of the grid."""

    name: str
    trials: list[Trial]
    swept: dict[str, Any] = field(default_factory=dict)
    label: str = ""
    """Its name in the plan; arms of a sweep may share it."""

    @property
    def finished(self) -> list[Trial]:
        """The trials that finished."""
        return [trial for trial in self.trials if trial.is_finished]

    @property
    def num_failed(self) -> int:
        """Trials that ended without a result."""
        return sum(trial.status == "failed" for trial in self.trials)

    @property
    def errors(self) -> list[float]:
        """The final errors of all finished trials."""
        return [error for trial in self.finished if (error := trial.final_error) is not None]

    @property
    def errors_by_seed(self) -> dict[int | None, float]:
        """The final errors by seed, to pair them with those of another arm."""
        return {trial.seed: error for trial in self.finished if (error := trial.final_error) is not None}

    def times_to(self, error: float | None) -> dict[int | None, float]:
        """The seconds to an error, for the seeds that reached it."""
        return {trial.seed: time for trial in self.finished if (time := trial.time_to(error)) is not None}

    def numbers(self, name: str) -> list[float]:
        """A number of the summary, for the trials that have it."""
        return [value for trial in self.finished if (value := trial.number(name)) is not None]

    @property
    def point(self) -> str:
        """Its label and its point in the grid, as one key."""
        return json.dumps([self.label, self.swept], sort_keys=True)
