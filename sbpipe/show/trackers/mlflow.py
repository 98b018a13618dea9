"""MLflow: a run at MLFLOW_TRACKING_URI, or files in RUN/mlruns. The only file that knows the library."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sbpipe.errors import MissingExtra
from sbpipe.runs.numbers import is_number
from sbpipe.show.trackers.tracker import Tracked

if TYPE_CHECKING:
    from mlflow.entities import Metric

FOLDER = "mlruns"
_DEFAULTS = {
    # The slim client has no database, so a local copy can only be files, which newer versions must be told to
    # allow.
    "MLFLOW_ALLOW_FILE_STORE": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "5",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}
"""Environment variables, unless the user has set them."""
_MAX_METRICS = 1000
_MAX_PARAMS = 100
"""What one request may hold."""
_STATUS = {"finished": "FINISHED", "stopped": "KILLED", "killed": "KILLED", "failed": "FAILED"}


class MLflow:
    """Settings are parameters, values are metrics with step and time, the summary's are `summary/...`."""

    name = "mlflow"
    purpose = "MLflow runs"
    remembers = True

    def __init__(self) -> None:
        # Before the import, which already reads some of them.
        for name, value in _DEFAULTS.items():
            os.environ.setdefault(name, value)
        try:
            from mlflow import entities, exceptions, tracking
        except ImportError:
            raise MissingExtra(self.name, self.name, self.purpose) from None
        self._entities, self._client_class = entities, tracking.MlflowClient
        self.errors: tuple[type[Exception], ...] = (exceptions.MlflowException, OSError)
        self._held: list[Metric] = []
        self._last = (0, 0.0)

    def start(self, run: Tracked) -> str:
        """Begin a run, or continue the earlier one."""
        self._client = self._client_class(
            os.environ.get("MLFLOW_TRACKING_URI") or (run.path / FOLDER).resolve().as_uri()
        )
        if run.known_as is not None:
            self._run_id = run.known_as
            self._client.update_run(self._run_id, status="RUNNING")
            return self._run_id
        found = self._client.get_experiment_by_name(run.project)
        experiment = found.experiment_id if found is not None else self._client.create_experiment(run.project)
        self._run_id = self._client.create_run(experiment, run_name=run.name).info.run_id
        params = [self._entities.Param(key, str(value)) for key, value in run.settings.items()]
        for begin in range(0, len(params), _MAX_PARAMS):
            self._client.log_batch(self._run_id, params=params[begin : begin + _MAX_PARAMS])
        return self._run_id

    def scalars(self, values: Mapping[str, float], step: int, wall_time: float) -> None:
        """Buffer the numbers until the next flush, so that one request carries many."""
        self._last = (step, wall_time)
        self._held += [
            self._entities.Metric(name, value, round(1000 * wall_time), step)
            for name, value in values.items()
        ]

    def flush(self) -> None:
        """Send what is buffered."""
        while self._held:
            self._client.log_batch(self._run_id, metrics=self._held[:_MAX_METRICS])
            del self._held[:_MAX_METRICS]

    def finish(self, summary: Mapping[str, Any], ending: str) -> None:
        """Send the rest and the run's status."""
        step, wall_time = self._last
        self.scalars(
            {f"summary/{name}": float(value) for name, value in summary.items() if is_number(value)},
            step,
            wall_time,
        )
        self.flush()
        # MLflow has the same status for stopped and killed runs.
        self._client.set_tag(self._run_id, "ending", ending)
        if ending in _STATUS:
            self._client.set_terminated(self._run_id, _STATUS[ending])
