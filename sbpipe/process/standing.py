"""How far a run has come, read from its directory for the supervisor. It must not know processes."""

from pathlib import Path

from sbpipe.runs.checkpoints import steps_in
from sbpipe.runs.directory import CONFIG, is_finished
from sbpipe.runs.events import EventLog
from sbpipe.runs.names.files import CHECKPOINTS, SUPERVISOR_EVENTS


class Standing:
    """Watches one run directory from before its trainer is started."""

    def __init__(self, path: Path, *, resume: bool) -> None:
        self._path = path
        self._is_resumed = resume
        # With --overwrite an earlier run lies here until the trainer has opened its own.
        self._settings_before = self._settings()
        self._has_begun = False
        self._deaths: list[tuple[str, int | None, int, bool]] = []
        """Deaths that are not written yet."""

    def _settings(self) -> tuple[int, int] | None:
        try:
            found = (self._path / CONFIG).stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns

    @property
    def has_begun(self) -> bool:
        """Whether the supervised run has written its settings: from then on it is resumed, or fails.

        Once true it stays true: if the directory disappears, the run must not restart at step 0 unasked.
        """
        now = self._settings()
        if now is not None and (self._is_resumed or now != self._settings_before):
            self._has_begun = True
        return self._has_begun

    @property
    def is_finished(self) -> bool:
        """Whether its summary says that it finished."""
        return self.has_begun and is_finished(self._path)

    @property
    def step(self) -> int:
        """The step of its newest checkpoint; -1 if there is none."""
        return max(steps_in(self._path / CHECKPOINTS), default=-1) if self.has_begun else -1

    def record_death(self, child: str, code: int | None, *, is_given_up: bool = False) -> None:
        """Note that a child died and what is done about it; it is written once there is a run."""
        self._deaths.append((child, code, max(0, self.step), is_given_up))
        self.write_deaths()

    def write_deaths(self) -> None:
        """Write the noted deaths if the run has begun."""
        if not self._deaths or not self.has_begun:
            return
        deaths, self._deaths = self._deaths, []
        try:
            events = EventLog(self._path / SUPERVISOR_EVENTS, "supervisor")
        except OSError:
            return  # a full disk costs the events, not the run
        for child, code, step, is_given_up in deaths:
            events.write("given up" if is_given_up else "restarted", child=child, code=code, step=step)
        events.close()
