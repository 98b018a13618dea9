"""One child process: its own log, stopped by its handle, ended with its parent. Knows no role."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from sbpipe.errors import SbpipeError
from sbpipe.process.bulletin import Bulletin

_PR_SET_PDEATHSIG = 1
_TAIL_LINES = 12
SAYS = "sbpipe: "
"""How an error that is not a bug begins on the terminal."""
SUPERVISED = "SBPIPE_SUPERVISED"
"""In a child's environment: the supervisor shows its progress and keeps its log."""


class ChildFailed(SbpipeError):
    """A role ended badly; its exit code becomes ours."""

    def __init__(self, child: "Child", after: str = "") -> None:
        code, said, left = child.code or 0, child.said(), child.last_word
        # The log's disk may be full: what was left in memory is surer.
        word = str(left.get("error", ""))
        if not word and said and said[-1].startswith(SAYS):
            word = said[-1].removeprefix(SAYS)
        tail = "\n".join(f"  {line}" for line in said[-_TAIL_LINES:]) or "  (nothing)"
        super().__init__(
            word or f"the {child.role} ended with code {code}{after}; the end of {child.log}:\n{tail}"
        )
        # Popen gives the negative signal number; a shell would say 128 + signal.
        self.exit_code = code if code > 0 else 128 - code
        self.summary: dict[str, Any] = left.get("summary", {})
        """The numbers of the run, where it came to its end before it failed."""


@dataclass
class Child:
    """One role's process."""

    role: str
    command: list[str]
    log: Path
    environment: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    bulletin: Bulletin | None = field(default=None, init=False)
    started_at: float = field(default=0.0, init=False)
    restart_at: float = field(default=0.0, init=False)
    """When it is to be started again, on the monotonic clock; 0 = it is not."""
    is_given_up: bool = field(default=False, init=False)
    log_begins: int = field(default=0, init=False)
    """Where this process's output begins in its log; before it is that of earlier ones."""

    def start(self) -> None:
        """Start the process, its output into its log."""
        self.started_at, self.restart_at = time.monotonic(), 0.0
        if self.bulletin is not None:
            self.bulletin.close()
        self.bulletin = Bulletin.new()
        with self._open_log() as log:
            self.log_begins = log.tell()
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Ctrl-C signals the terminal's whole session: only the supervisor may get it.
                start_new_session=True,
                preexec_fn=die_with_parent,
                pass_fds=(self.bulletin.handle,),
                env={**os.environ, SUPERVISED: "1", **self.bulletin.environment, **self.environment},
            )

    def _open_log(self) -> BinaryIO:
        """Its log; nowhere if the run directory is gone or full: a process is worth more than its log."""
        is_first = self.process is None
        try:
            if is_first:
                self.log.parent.mkdir(parents=True, exist_ok=True)
            return self.log.open("ab")
        except OSError:
            if is_first:
                raise
            return Path(os.devnull).open("ab")

    @property
    def last_word(self) -> dict[str, Any]:
        """What it left in memory when it ended."""
        return self.bulletin.last_word if self.bulletin is not None else {}

    @property
    def code(self) -> int | None:
        """Its exit code, None while it runs."""
        return self.process.poll() if self.process is not None else None

    def said(self) -> list[str]:
        """The lines of its log, without those of earlier processes."""
        try:
            with self.log.open("rb") as log:
                log.seek(self.log_begins)
                return log.read().decode(errors="replace").splitlines()
        except OSError:
            return []

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Send a signal if it still runs."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)

    def wait(self, timeout_s: float) -> None:
        """Wait for its end; kill it when the time is up."""
        if self.process is None:
            return
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def die_with_parent() -> None:
    """Called in a new process: it is told to end when its parent does."""
    # SIGTERM, not SIGKILL: a trainer whose supervisor was killed still leaves a checkpoint.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def role_command(role: str, *arguments: str) -> list[str]:
    """The command line of one role, with this interpreter."""
    return [sys.executable, "-m", "sbpipe", role, *arguments]
