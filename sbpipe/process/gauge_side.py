"""One side of the short run that a plan measures, as its parent has it: a process that is told and answers,
line by line. No torch. It must not know what is measured.
"""

import contextlib
import json
import subprocess
import sys
from collections.abc import Mapping
from typing import IO, Any

from sbpipe.errors import SbpipeError
from sbpipe.process import assignments
from sbpipe.process.child import SAYS, role_command

LINK, SCORE, REST, WORK = "link", "score", "rest", "work"
"""What sides are told; what they say first are facts of themselves."""


class GaugeFailed(SbpipeError):
    """A side could not be measured; what it said last is the reason."""


class Side:
    """The process of one side."""

    def __init__(self, side: str, settings: Mapping[str, Any], log: IO[str]) -> None:
        self._log = log
        self.process = subprocess.Popen(
            role_command("plan", *assignments(settings), "--side", side),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            bufsize=1,
            # As the roles of a run: a busy machine shares its cores between sessions first.
            start_new_session=True,
        )

    def ask(self, order: str) -> dict[str, Any]:
        """Tell it what to do; its answer."""
        assert self.process.stdin is not None
        # The answer of one that has ended is missing, and says so.
        with contextlib.suppress(OSError):
            self.process.stdin.write(f"{order}\n")
            self.process.stdin.flush()
        return self.hear()

    def hear(self) -> dict[str, Any]:
        """The next thing that it says."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if line:
            return dict(json.loads(line))
        raise self._failure()

    def _failure(self) -> GaugeFailed:
        self.process.wait()
        self._log.seek(0)
        said = [text.strip() for text in self._log.read().splitlines() if text.strip()]
        named = [text for text in said if text.startswith(SAYS)]
        reason = (named or said or ["it ended without a message"])[-1].removeprefix(SAYS)
        error = GaugeFailed(f"cannot be measured: {reason}")
        # A mistake in the settings is the user's here as it is in a run.
        error.exit_code = self.process.returncode if self.process.returncode in (2, 3) else 1
        sys.stderr.write("\n".join(said[-12:]) + "\n" if not named else "")
        return error

    def stop(self) -> None:
        """End it."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        # Closed input is the word to stop; a side in the middle of a long step is not waited for.
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        self.process.terminate()
        self.process.wait()
        self.process.stdout.close()
