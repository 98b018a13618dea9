"""Weights & Biases: a run of the project, files in RUN/wandb. The only file that knows the library."""

import uuid
from collections.abc import Mapping
from typing import Any

from sbpipe.errors import MissingExtra
from sbpipe.show.trackers.tracker import Tracked

STEP = "step"
"""The x axis, an ordinary value: W&B's own step may only grow, and several events share a step."""


class WeightsAndBiases:
    """Every event is a row of the run's history, with its step and time; the summary is the run's summary."""

    name = "wandb"
    purpose = "W&B runs"
    remembers = True

    def __init__(self) -> None:
        try:
            import wandb
        except ImportError:
            raise MissingExtra(self.name, self.name, self.purpose) from None
        self._wandb = wandb
        self.errors: tuple[type[Exception], ...] = (wandb.Error, OSError)

    def start(self, run: Tracked) -> str:
        """Begin a run, or continue the earlier one."""
        known_as = run.known_as or uuid.uuid4().hex[:12]
        self._run = self._wandb.init(
            project=run.project,
            name=run.name,
            id=known_as,
            resume="allow" if run.known_as else None,
            dir=str(run.path),
            config=dict(run.settings),
            # Off: it would copy this process's output, which is not the run's.
            settings=self._wandb.Settings(console="off"),
        )
        self._run.define_metric(STEP, hidden=True)
        self._run.define_metric("*", step_metric=STEP)
        return known_as

    def scalars(self, values: Mapping[str, float], step: int, wall_time: float) -> None:
        """One row."""
        self._run.log({**values, STEP: step, "_timestamp": wall_time})

    def flush(self) -> None:
        """Nothing is buffered here: the library sends from a separate process."""

    def finish(self, summary: Mapping[str, Any], ending: str) -> None:
        """Send the rest; waits until it is sent."""
        self._run.summary.update({**summary, "status": ending})
        self._run.finish(exit_code=1 if ending in ("failed", "killed") else 0)
