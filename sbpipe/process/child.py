"""One child process: it has its own log, is stopped by its handle, ends with its parent. Knows no role."""

import contextlib
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
_SHUTDOWN_S = 3600
"""How long torchrun lets ranks finish a step and write a checkpoint; our supervisor gives up sooner."""
SAYS = "sbpipe: "
"""The prefix on the terminal of an error that is not a bug."""
SUPERVISED = "SBPIPE_SUPERVISED"
"""In a child's environment: the supervisor shows its progress and keeps its log."""


class ChildFailed(SbpipeError):
    """A role ended badly; its exit code becomes ours."""

    def __init__(self, child: "Child", after: str = "") -> None:
        code, said, left = child.code or 0, child.said(), child.last_word
        # The log's disk may be full: the word in memory is more reliable.
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
        """The numbers of the run, if it finished before it failed."""


@dataclass
class Child:
    """One role's process."""

    role: str
    command: list[str]
    log: Path
    is_launcher: bool = False
    """Whether it only starts other processes, one of which leaves the last word."""
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    bulletin: Bulletin | None = field(default=None, init=False)
    started_at: float = field(default=0.0, init=False)
    restart_at: float = field(default=0.0, init=False)
    """When to restart it, on the monotonic clock; 0 = no restart is due."""
    is_given_up: bool = field(default=False, init=False)
    log_begins: int = field(default=0, init=False)
    """Where this process's output begins in its log, after that of earlier processes."""

    def start(self) -> None:
        """Start the process, its output into its log."""
        self.started_at, self.restart_at = time.monotonic(), 0.0
        self.close()
        self.bulletin = Bulletin.new()
        with self._open_log() as log:
            self.log_begins = log.tell()
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Ctrl-C goes to the terminal's whole session, and only the supervisor may get it.
                start_new_session=True,
                preexec_fn=die_with_parent,
                pass_fds=(self.bulletin.handle,),
                env={**os.environ, SUPERVISED: "1", **self.bulletin.environment},
            )

    def close(self) -> None:
        """Release the memory of its last word, which can no longer be read then."""
        bulletin, self.bulletin = self.bulletin, None
        if bulletin is not None:
            bulletin.close()

    def _open_log(self) -> BinaryIO:
        """Its log; /dev/null if the run directory is gone or full at a restart: the process matters more."""
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
        """The last word it left in memory."""
        return self.bulletin.last_word if self.bulletin is not None else {}

    @property
    def code(self) -> int | None:
        """Its exit code, None while it runs; a launcher's is that of the process it started."""
        code = self.process.poll() if self.process is not None else None
        return int(self.last_word.get("code", code)) if code and self.is_launcher else code

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
            # The processes that a launcher started would survive its kill.
            started = _children_of(self.process.pid) if self.is_launcher and number == signal.SIGKILL else []
            self.process.send_signal(number)
            for pid in started:
                with contextlib.suppress(OSError):
                    os.kill(pid, number)

    def wait(self, timeout_s: float) -> None:
        """Wait for its end; kill it when the time is up."""
        if self.process is None:
            return
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.stop(signal.SIGKILL)
            self.process.wait()


def _children_of(pid: int) -> list[int]:
    try:
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def launched(command: list[str], count: int) -> list[str]:
    """A command of this package under torchrun, with `count` ranks on this host.

    torchrun restarts nothing here: the supervisor does, which knows how far the run has come.
    """
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts", "0"]
    patience = ["--shutdown-timeout", str(_SHUTDOWN_S)]
    return [*torchrun, *patience, "--nproc-per-node", str(count), *command[command.index("-m") :]]


def die_with_parent() -> None:
    """Ask the kernel to stop this process when its parent ends."""
    # SIGTERM, not SIGKILL: a trainer whose supervisor was killed still leaves a checkpoint.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def role_command(role: str, *arguments: str) -> list[str]:
    """The command line of one role, with this interpreter."""
    return [sys.executable, "-m", "sbpipe", role, *arguments]
