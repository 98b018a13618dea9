"""What a run must leave: its last checkpoint and summary, in the run directory or else in a spare folder.

It must not know how a checkpoint is gathered, nor what a summary says.
"""

import contextlib
import logging
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sbpipe.config import Config
from sbpipe.errors import ResultsElsewhere, ResultsLost
from sbpipe.runs.checkpoints import path_of, steps_in
from sbpipe.runs.directory import RunDir, write_config, write_summary
from sbpipe.runs.names.files import CHECKPOINTS, LAST_WEIGHTS, SUMMARY, TRAINER_EVENTS
from sbpipe.trainer import checkpoint_file
from sbpipe.trainer.checkpoint import Checkpoints

log = logging.getLogger("sbpipe.trainer")


class Results:
    """Writes what it is given, remembers what the run directory did not take, and says so at the end."""

    def __init__(self, config: Config, run_dir: RunDir, checkpoints: Checkpoints) -> None:
        self._config, self._path, self._checkpoints = config, run_dir.path, checkpoints
        self._moved: list[str] = []
        self._lost: list[str] = []
        self._is_unanswered = False
        """Whether the loss was caused by a selector that did not answer, and not by lack of space."""
        self.spare: Path | None = None
        """A new run directory, made for what the first one did not take."""

    @property
    def are_lost(self) -> bool:
        """Whether something could not be written anywhere."""
        return bool(self._lost)

    def leave_checkpoint(self, step: int, state: dict[str, Any]) -> None:
        """Write the last checkpoint: a resume goes on from it, and it holds the final weights."""

        def write(folder: Path) -> str:
            return Checkpoints(folder / CHECKPOINTS).save_now(step, state)

        error = self._checkpoints.save_now(step, state)
        if error:
            self._leave_elsewhere(f"the checkpoint of step {step}", error, write)

    def leave_weights(self, step: int, state: dict[str, Any], reason: str) -> str:
        """Write the trained weights where no checkpoint can be made; returns what is lost and
        what is where.
        """

        def write(folder: Path) -> str:
            try:
                (folder / CHECKPOINTS).mkdir(exist_ok=True)
                path = folder / CHECKPOINTS / LAST_WEIGHTS.format(step)
                checkpoint_file.write(path, step, checkpoint_file.frozen(state), lambda: None)
            except OSError as error:
                return _said(error)
            return ""

        error = write(self._path)
        if error:
            self._leave_elsewhere(f"the weights of step {step}", error, write)
        path = (self.spare or self._path) / CHECKPOINTS / LAST_WEIGHTS.format(step)
        kept = f"; its weights are in {path}" if path.exists() else ""
        self._lost.append(f"the checkpoint of step {step} ({reason}{kept})")
        self._is_unanswered = True
        return self._what_is_lost()

    def leave_summary(self, summary: dict[str, Any]) -> None:
        """Write the numbers of the run, also into a spare folder that was made."""

        def write(folder: Path) -> str:
            try:
                write_summary(folder, summary)
            except OSError as error:
                return _said(error)
            return ""

        error = write(self._path)
        if error:
            self._leave_elsewhere(SUMMARY, error, write)
        elif self.spare is not None:
            write(self.spare)

    def check(self, summary: dict[str, Any], *, is_finished: bool) -> None:
        """Raise unless everything is in the run directory."""
        if self._lost:
            raise ResultsLost(self._what_is_lost(), summary)
        if self._moved:
            way_out = (
                "Copy it back once there is room"
                if is_finished
                else f"Go on with: sbpipe run --run-dir {self.spare} --resume"
            )
            raise ResultsElsewhere(f"{'. '.join(self._where())}. {way_out}", summary)

    def _what_is_lost(self) -> str:
        folder = self._path / CHECKPOINTS
        steps: list[int] = []
        with contextlib.suppress(OSError):  # out of file descriptors, the folder cannot be listed
            steps = [step for step in steps_in(folder) if path_of(folder, step).is_file()]
        before = f"the last one there is of step {steps[-1]}" if steps else "there is none before it"
        parts = [
            f"lost: {'; '.join(self._lost)}",
            *self._where(),
            f"Of checkpoints in {self._path}, {before}",
        ]
        way_out = (
            "Go on with --resume"
            if self._is_unanswered
            else "Free some space there, or name another folder with --spare, and go on with --resume"
        )
        return f"{'. '.join(parts)}. {way_out}"

    def _where(self) -> list[str]:
        parts = (
            [f"{self._path} did not take {', '.join(self._moved)}: now in {self.spare}"]
            if self._moved
            else []
        )
        if not (self._path / TRAINER_EVENTS).exists():
            parts.append("The events of the run are gone")
        return parts

    def _leave_elsewhere(self, what: str, why: str, write: Callable[[Path], str]) -> None:
        reasons = [f"{self._path}: {why}"]
        for place in self._places():
            try:
                folder = self.spare or self._make_spare(place)
            except OSError as error:
                reasons.append(f"{place}: {_said(error)}")
                continue
            error_there = write(folder)
            if not error_there:
                self.spare = folder
                self._moved.append(f"{what} ({why})")
                log.warning("%s did not take %s (%s); it is in %s", self._path, what, why, folder)
                return
            reasons.append(f"{folder}: {error_there}")
            if self.spare is None:
                shutil.rmtree(folder, ignore_errors=True)
        self._lost.append(f"{what} ({'; '.join(reasons)})")
        log.error("%s could not be written anywhere (%s)", what, "; ".join(reasons))

    def _places(self) -> list[str]:
        """Where a spare folder may be made, the best first."""
        named = self._config.checkpoint.spare
        with contextlib.suppress(OSError):  # none of the usual ones can be written to
            return [*([named] if named else []), tempfile.gettempdir()]
        return [named] if named else []

    def _make_spare(self, place: str) -> Path:
        """A new folder that only this user may enter, since others may write to the place itself."""
        Path(place).mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f"sbpipe-{self._path.name}-", dir=place)).resolve()
        try:
            write_config(folder, self._config)
        except OSError:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return folder


def _said(error: OSError) -> str:
    return error.strerror or str(error)
