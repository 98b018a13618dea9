"""Runs one cell as a process: start, follow, stop. Knows the files of a run, but no plans."""

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sbpipe.process import SAYS, Child, assignments, role_command
from sbpipe.runs.directory import is_finished
from sbpipe.runs.follower import TrainerFollower
from sbpipe.studies.core_shares import on_cores
from sbpipe.studies.folder import State, StudyFolder
from sbpipe.studies.plan import PlannedCell

# Longer than a run waits for its own trainer to stop (30 s), so that it ends by itself.
_STOP_S = 45.0


class CellRun:
    """A running cell. Its process leads its own session, and the kernel stops it if the study is killed."""

    def __init__(
        self, folder: StudyFolder, cell: PlannedCell, attempt: int, cores: Sequence[int] | None = None
    ) -> None:
        """`cores` is its share of the machine; None = all of it."""
        path = folder.run_path(cell)
        command = role_command("run", *assignments(cell.settings), "--run-dir", str(path), "--no-report")
        self._folder, self.cell, self._path, self.cores = folder, cell, path, cores
        self._child = Child("run", command, folder.log_path(cell))
        self._follower = TrainerFollower(path)
        self.state = State("running", time.time(), attempt, load=round(os.getloadavg()[0], 2))
        self.progress: dict[str, Any] | None = None
        """The run's last progress event."""

    def start(self) -> None:
        """Start the process."""
        # Set before its start, since a child inherits them: libraries count cores when they are loaded.
        with on_cores(self.cores):
            self._child.start()
        assert self._child.process is not None
        # If the study is killed, the next attempt must wait until this process is gone.
        self.state = replace(self.state, pid=self._child.process.pid)
        self._folder.write_state(self.cell, self.state)

    def has_beside(self, others: int) -> None:
        """Note that `others` other cells are running now."""
        if others > self.state.beside:
            self.state = replace(self.state, beside=others)
            self._folder.write_state(self.cell, self.state)

    @property
    def elapsed_s(self) -> float:
        """Seconds since its start."""
        return time.time() - self.state.started

    def is_over(self) -> bool:
        """Whether the process has ended; also reads its progress."""
        # Asked before reading, so that the run's last events are not missed.
        is_over = self._child.code is not None
        for event in self._follower.new_events():
            if event.get("kind") == "progress":
                self.progress = event
        return is_over

    def conclude(self) -> State:
        """Write how it ended."""
        ended, code = time.time(), self._child.code
        # Both: with code 0 the summary may still be missing, if the disk was full.
        is_good = code == 0 and is_finished(self._path)
        self.state = replace(
            self.state,
            status="finished" if is_good else "failed",
            ended=ended,
            process_s=round(ended - self.state.started, 3),
            error=None if is_good else last_word(self._child.log, code or 0),
        )
        self._folder.write_state(self.cell, self.state)
        self._child.close()
        return self.state

    def signal(self, number: int = signal.SIGTERM) -> None:
        """Tell the run to finish its step and end, or kill it."""
        self._child.stop(number)

    def leave(self) -> None:
        """Wait until the run has ended; the cell counts as not begun."""
        self._child.wait(_STOP_S)
        self._child.close()
        self._folder.forget(self.cell)


def stop_all(runs: Sequence[CellRun]) -> None:
    """Stop all runs at the same time; a second Ctrl-C kills them."""
    try:
        for run in runs:
            run.signal()
        for run in runs:
            run.leave()
    except KeyboardInterrupt:
        for run in runs:
            run.signal(signal.SIGKILL)
        for run in runs:
            run.leave()


def last_word(log: os.PathLike[str], code: int) -> str:
    """Why a run failed, in one line: its last message, or the signal that ended it."""
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    if code == 130:
        return "stopped from outside"
    with open(log, encoding="utf-8", errors="replace") as file:
        lines = [line.strip() for line in file if line.strip()]
    # Where the run has given a reason, it says more than a traceback's last line.
    said = [line for line in lines if line.startswith(SAYS)]
    return (said or lines or [f"ended with code {code} and said nothing"])[-1].removeprefix(SAYS)
