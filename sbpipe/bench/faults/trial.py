"""One real training in processes of its own, watched from outside: what it says, when it steps, how it ends.

Nothing in the product knows of it: faults come by signals, limits, files and proxies. It must not know which
faults there are.
"""

import contextlib
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sbpipe.archives import BadArchive, read_npz
from sbpipe.bench.faults.proxy import Proxy, Weather
from sbpipe.bench.faults.subject import FOLDER, JOB, NUM_EXAMPLES
from sbpipe.config import toml_value
from sbpipe.errors import SbpipeError
from sbpipe.runs.names.files import EXAMPLES, LOGS, SUMMARY, TRAINER_EVENTS

Command = subprocess.Popen[str]
HANG_S = 300.0
"""Anything that takes longer than this has hung."""
OUTAGE_S = 6.0
"""How long what comes back is away: longer than the silence after which a peer is lost."""
_POLL_S = 0.02


class Hung(SbpipeError):
    """An expected event did not come."""


@dataclass(frozen=True)
class Ending:
    """The result of a trial; None where it is unknown."""

    code: int
    error: float | None
    idle: float | None
    lost: int | None
    twice: int | None
    words: str


class Trial:
    """A run directory, the commands that work in it, and the lines they have said."""

    def __init__(self, folder: Path, changes: Mapping[str, Any], around: Sequence[str] = ()) -> None:
        """`around` is put in front of the command, to change its environment before it starts."""
        self.folder, self.path = folder, folder / "run"
        self._changes, self._around = JOB | dict(changes), list(around)
        self._processes: list[Command] = []
        self._said: list[tuple[float, str]] = []
        self._listeners: list[threading.Thread] = []
        self._closing: list[Callable[[], object]] = []
        self.environment: dict[str, str] = {FOLDER: str(folder)}
        self.fault_at = 0.0
        self.weather = Weather()
        self.proxy: Proxy | None = None

    # --- starting ---------------------------------------------------------------------------------

    @property
    def settings(self) -> list[str]:
        """The job as arguments."""
        return [
            part for key, value in self._changes.items() for part in ("--set", f"{key}={toml_value(value)}")
        ]

    def start(self, *arguments: str) -> Command:
        """Start a command of sbpipe; its output is recorded with times."""
        process = subprocess.Popen(
            [*self._around, sys.executable, "-m", "sbpipe", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**os.environ, **self.environment},
            start_new_session=True,
        )
        self._processes.append(process)
        listener = threading.Thread(target=self._listen, args=(process,), daemon=True)
        listener.start()
        self._listeners.append(listener)
        return process

    def run(self, *arguments: str) -> Command:
        """Start `sbpipe run` on the job."""
        return self.start("run", "--no-report", "--run-dir", str(self.path), *arguments, *self.settings)

    def resume(self) -> Command:
        """Go on where it was stopped, as a user would."""
        return self.start("run", "--no-report", "--run-dir", str(self.path), "--resume")

    def _listen(self, process: Command) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                self._said.append((time.monotonic(), line))

    # --- looking ----------------------------------------------------------------------------------

    def wait_for(self, what: str, condition: Callable[[], Any], deadline_s: float = HANG_S) -> Any:
        """Poll until it holds; Hung if it does not, or if the run is over before."""
        give_up = time.monotonic() + deadline_s
        while time.monotonic() < give_up:
            found = condition()
            if found:
                return found
            if self._processes[0].poll() is not None and len(self._processes) == 1:
                raise Hung(f"the run ended before {what}:\n{self.words}")
            time.sleep(_POLL_S)
        raise Hung(f"{what} did not come within {deadline_s:.0f} s:\n{self.words}")

    def wait_steps(self, count: int) -> None:
        """Wait until the trainer has done so many more steps."""
        before = len(self.step_times())
        self.wait_for(f"{count} more steps", lambda: len(self.step_times()) >= before + count)

    def begin_fault(self) -> None:
        """Wait until a selector has worked for a while; whatever happens after that is due to the fault."""
        self.wait_for("a selector", lambda: self.events("selector"))
        self.wait_steps(30)
        self.fault_at = time.monotonic()

    def wait_for_quiet(self) -> None:
        """Wait until no process works in the run directory."""
        give_up = time.monotonic() + HANG_S
        while self.pids("trainer") or self.pids("selector"):
            if time.monotonic() > give_up:
                raise Hung(f"processes are left:\n{self.words}")
            time.sleep(_POLL_S)

    def events(self, kind: str) -> list[dict[str, Any]]:
        """The trainer's events of a kind; lines that were cut off are left out."""
        found = []
        with contextlib.suppress(OSError), (self.path / TRAINER_EVENTS).open(errors="replace") as lines:
            for line in lines:
                with contextlib.suppress(ValueError):
                    event = json.loads(line)
                    found += [event] if event.get("kind") == kind else []
        return found

    def step_times(self) -> list[float]:
        """When steps ended, on the clock of events."""
        return [float(event["clock"]) for event in self.events("step")]

    def longest_stop_s(self, since: float) -> float | None:
        """The longest time between two steps, from a moment on; None if there were none."""
        after = [at for at in self.step_times() if at >= since - 1.0]
        return max((b - a for a, b in itertools.pairwise(after)), default=None)

    def noticed_s(self, pattern: str, since: float) -> float | None:
        """How long after a moment something of this kind was first said, on the terminal or in an event."""
        spoken = [at for at, line in self._said if at >= since and re.search(pattern, line)]
        return spoken[0] - since if spoken else None

    def pid(self, role: str) -> int:
        """The process of a role, once there is one."""
        return int(self.wait_for(f"a {role}", lambda: next(iter(self.pids(role)), 0)))

    def pids(self, role: str) -> list[int]:
        """The processes of a role that work in this run directory."""
        found = []
        for entry in Path("/proc").iterdir():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
            except OSError:
                continue
            if str(self.path).encode() in words and role.encode() in words and b"run" not in words[:4]:
                found.append(int(entry.name))
        return sorted(found)

    @property
    def words(self) -> str:
        """The last lines that were said, and the last of the roles' logs."""
        tail = [line.rstrip() for _, line in self._said[-12:]]
        for log in sorted((self.path / LOGS).glob("*.log")) if (self.path / LOGS).is_dir() else []:
            tail += [f"{log.name}: {line}" for line in log.read_text(errors="replace").splitlines()[-6:]]
        return "\n".join(tail)

    # --- ending -----------------------------------------------------------------------------------

    def ending(self, process: Command) -> Ending:
        """Wait for the end of a command, and look at what it has left."""
        try:
            code = process.wait(HANG_S)
        except subprocess.TimeoutExpired:
            raise Hung(f"the run did not end within {HANG_S:.0f} s:\n{self.words}") from None
        summary = self.summary()
        lost, twice = self._coverage(summary)
        return Ending(
            code, summary.get("eval.error"), summary.get("trainer.idle_ratio"), lost, twice, self.words
        )

    def summary(self) -> dict[str, Any]:
        """The numbers that the run has left; {} if it has left none."""
        with contextlib.suppress(OSError, ValueError):
            return dict(json.loads((self.path / SUMMARY).read_text()))
        return {}

    def _coverage(self, summary: Mapping[str, Any]) -> tuple[int | None, int | None]:
        """Candidates that were never considered, and those that were considered too often.

        Example by example where the run has left that, else by their number.
        """
        epochs = int(self._changes["train.epochs"])
        try:
            times = read_npz(self.path / EXAMPLES, ("times_considered",))["times_considered"]
        except (OSError, KeyError, BadArchive):
            missing = epochs * NUM_EXAMPLES - summary["candidates"] if "candidates" in summary else None
            return (None, None) if missing is None else (max(0, missing), max(0, -missing))
        assert len(times) == NUM_EXAMPLES
        short = epochs - times.astype(np.int64)
        return int(short.clip(min=0).sum()), int((-short).clip(min=0).sum())

    def on_close(self, closing: Callable[[], object]) -> None:
        """Do this at the end of the trial."""
        self._closing.append(closing)

    def close(self) -> None:
        """Kill all remaining processes, and undo the changes to their environment."""
        for role in ("trainer", "selector"):
            for pid in self.pids(role):
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
        for process in self._processes:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for listener in self._listeners:
            listener.join()
        for closing in reversed(self._closing):
            closing()
