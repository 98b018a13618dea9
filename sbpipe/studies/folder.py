"""A study's folder: who may write to it, its plan, and the state of each cell. Starts nothing.

plan.json            which runs, in which order          study.lock          held while a process works here
cells/NAME/          an ordinary run directory           cells/NAME.log      the output of that run
cells/NAME.json      the state of the cell               results.*           see `results_file`
"""

import fcntl
import json
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sbpipe.errors import RunDirError
from sbpipe.files import write_atomically
from sbpipe.runs.directory import default_path, is_finished, refuse_foreign_links, refuse_if_in_use
from sbpipe.runs.study import CELLS, PLAN
from sbpipe.studies.plan import Plan, PlannedCell
from sbpipe.studies.plan_changes import differences, has_grown, refuse_changed

LOCK = "study.lock"
# Longer than a run takes to stop its roles after its study was killed.
_LEAVING_S = 60.0
_POLL_S = 0.2
_MOST_DIFFERENCES = 4


@dataclass(frozen=True)
class State:
    """The state of a cell: `status` is running, finished or failed; a cell without one has not begun."""

    status: str
    started: float
    """Wall clock at which its process was started."""
    attempt: int = 1
    ended: float | None = None
    process_s: float | None = None
    error: str | None = None
    pid: int | None = None
    load: float | None = None
    """The load at its start: processes that wanted a core, a mean over one minute."""
    beside: int = 0
    """The most other cells of the study that ran at the same time, each on its share of the cores."""


def default_out(kind: str, name: str) -> Path:
    """A new folder under runs/, named by the time."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or kind
    return default_path(f"{kind}-{plain}")


class StudyFolder:
    """A claimed folder; release it with `close`."""

    def __init__(self, path: Path, plan: Plan) -> None:
        """Make or reopen the folder of this plan, and lock it against a second process."""
        self.path = path.resolve()
        if path.exists() and not path.is_dir():
            raise RunDirError(f"{path} is a file. Name a folder with --out")
        refuse_foreign_links(path, path / CELLS)
        is_study = (path / PLAN).exists()
        if (
            path.is_dir()
            and not is_study
            and any(entry.name not in (LOCK, CELLS) for entry in path.iterdir())
        ):
            raise RunDirError(
                f"{path} is not empty and holds no study ({PLAN} is missing). Choose another --out"
            )
        try:
            (self.path / CELLS).mkdir(parents=True, exist_ok=True)
            self._lock_file = (self.path / LOCK).open("a")
        except OSError as error:
            raise RunDirError(
                f"{path} cannot be written ({error.strerror}). Choose another place with --out"
            ) from None
        try:
            # First the lock, then the plan: two processes must not both find a new folder.
            self._lock()
            self._settle(plan)
        except RunDirError:
            self.close()
            raise

    def close(self) -> None:
        """Release the lock, so that another process may work here."""
        self._lock_file.close()

    def run_path(self, cell: PlannedCell) -> Path:
        """The cell's run directory."""
        return self.path / CELLS / cell.cell

    def log_path(self, cell: PlannedCell) -> Path:
        """The output of the cell's processes."""
        return self.path / CELLS / f"{cell.cell}.log"

    def state(self, cell: PlannedCell) -> State | None:
        """The state of the cell; None if it has not begun, or has finished and its run is gone."""
        try:
            state = State(**json.loads(self._state_path(cell).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None
        return None if state.status == "finished" and not is_finished(self.run_path(cell)) else state

    def write_state(self, cell: PlannedCell, state: State) -> None:
        """Write the state of the cell."""
        write_atomically(self._state_path(cell), json.dumps(asdict(state), indent=2) + "\n")

    def forget(self, cell: PlannedCell) -> None:
        """Remove the state: the cell counts as not begun."""
        self._state_path(cell).unlink(missing_ok=True)

    def clear(self, cell: PlannedCell, say: Callable[[str], None]) -> int:
        """Remove the files of earlier attempts once their last process is gone; returns their number."""
        state = self.state(cell)
        # An old process would write into the folder of the new attempt.
        wait_until_left(self.run_path(cell), state.pid if state else None, say)
        shutil.rmtree(self.run_path(cell), ignore_errors=True)
        self.log_path(cell).unlink(missing_ok=True)
        return state.attempt if state else 0

    def _state_path(self, cell: PlannedCell) -> Path:
        return self.path / CELLS / f"{cell.cell}.json"

    def _lock(self) -> None:
        # The kernel drops the lock with the process, so that a killed study leaves none behind.
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RunDirError(
                f"another process is working in {self.path}. Wait for it, stop it, or choose another --out"
            ) from None

    def _settle(self, plan: Plan) -> None:
        """Write the plan to a new folder; an old folder must hold the same plan, or one with fewer cells."""
        now = plan.as_json()
        try:
            there: dict[str, Any] = json.loads((self.path / PLAN).read_text(encoding="utf-8"))
        except FileNotFoundError:
            write_atomically(self.path / PLAN, json.dumps(now, indent=2) + "\n")
            return
        except ValueError:
            raise RunDirError(
                f"{self.path / PLAN} cannot be read. Choose another --out, or delete the folder"
            ) from None
        found = differences(there, now)
        if found and not has_grown(there, now):
            more = f", and {len(found) - _MOST_DIFFERENCES} more" if len(found) > _MOST_DIFFERENCES else ""
            raise RunDirError(
                f"{self.path} holds a different plan: {', '.join(found[:_MOST_DIFFERENCES])}{more}. "
                "Give the same file and flags to resume there, or choose another --out"
            )
        # Finished cells only: the numbers of others enter no mean.
        refuse_changed([(cell, self.run_path(cell)) for cell in plan.cells if self._is_finished(cell)])
        if found:
            write_atomically(self.path / PLAN, json.dumps(now, indent=2) + "\n")

    def _is_finished(self, cell: PlannedCell) -> bool:
        state = self.state(cell)
        return state is not None and state.status == "finished"


def wait_until_left(run_path: Path, pid: int | None, say: Callable[[str], None]) -> None:
    """Wait, with a deadline, until a run whose study was killed has stopped by itself."""
    give_up, has_said = time.monotonic() + _LEAVING_S, False
    while problem := _occupied(run_path, pid):
        if time.monotonic() > give_up:
            raise RunDirError(
                f"{problem} for more than {_LEAVING_S:.0f} s. Stop it, then give the same command again"
            )
        if not has_said:
            say(f"waiting until an earlier attempt has stopped: {problem}")
            has_said = True
        time.sleep(_POLL_S)


def _occupied(run_path: Path, pid: int | None) -> str:
    """The process that still works in a run directory, in words; "" if there is none."""
    try:
        # The id alone is not enough: it may belong to another process by now.
        if pid is not None and str(run_path).encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
            return f"process {pid} is working in {run_path}"
    except OSError:
        pass
    try:
        refuse_if_in_use(run_path)
    except RunDirError:
        return f"a trainer is working in {run_path}"
    return ""
