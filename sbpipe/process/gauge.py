"""Measures both sides of a pipeline at the same time, each in a process pinned as `run` pins it. No torch.

At the same time, because they share memory bandwidth and perhaps a core's execution units: either side alone
would look faster than it is in a run. Then each alone for a while, because in a run one of them rests for a
part of every step.
"""

import contextlib
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from typing import IO, Any

from sbpipe.errors import SbpipeError
from sbpipe.process import assignments
from sbpipe.process.child import SAYS, role_command

SIDES = ("trainer", "selector")
READY, MEASURE, AGAIN, REST = "ready", "measure", "again", "rest"
"""What sides say when they are built, and what they are told."""
_DEADLINE_S = 180.0
"""Far beyond what measuring takes: only a side that hangs is that late."""


class GaugeFailed(SbpipeError):
    """A side could not be measured; what it said last is the reason."""


def measure_both(settings: Mapping[str, Any], seconds: float) -> dict[str, dict[str, Any]]:
    """What each side found, by its name."""
    with tempfile.TemporaryFile("w+") as log:
        sides = {side: _start(side, settings, log) for side in SIDES}
        # A hang must end somewhere, and reading a line has no deadline of its own.
        watchdog = threading.Timer(_DEADLINE_S, _kill, [list(sides.values())])
        watchdog.start()
        try:
            for process in sides.values():
                _line_of(process, log)
            found = _ask(sides, f"{MEASURE} {seconds}", log)
            for side, other in (SIDES, reversed(SIDES)):
                _ask({other: sides[other]}, REST, log)
                found[side]["alone"] = _ask({side: sides[side]}, f"{AGAIN} {seconds / 4}", log)[side]
            return found
        finally:
            watchdog.cancel()
            for process in sides.values():
                _stop(process)


def _ask(sides: Mapping[str, "subprocess.Popen[str]"], order: str, log: IO[str]) -> dict[str, Any]:
    """Tell some sides what to do, all before the first answers; what each answers."""
    for process in sides.values():
        assert process.stdin is not None
        # The answer of one that has ended is missing, and says so.
        with contextlib.suppress(OSError):
            process.stdin.write(f"{order}\n")
            process.stdin.flush()
    answers = {side: _line_of(process, log).strip() for side, process in sides.items()}
    return {side: json.loads(text) if text != REST else {} for side, text in answers.items()}


def _start(side: str, settings: Mapping[str, Any], log: IO[str]) -> "subprocess.Popen[str]":
    command = role_command("plan", *assignments(settings), "--side", side)
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        bufsize=1,
        # As the roles of a run: a busy machine shares its cores between sessions first.
        start_new_session=True,
    )


def _line_of(process: "subprocess.Popen[str]", log: IO[str]) -> str:
    """The next line that a side says."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if line:
        return line
    process.wait()
    log.seek(0)
    said = [text.strip() for text in log.read().splitlines() if text.strip()]
    named = [text for text in said if text.startswith(SAYS)]
    reason = (named or said or ["it ended without a message"])[-1].removeprefix(SAYS)
    error = GaugeFailed(f"cannot be measured: {reason}")
    # A mistake in the settings is the user's here as it is in a run.
    error.exit_code = process.returncode if process.returncode in (2, 3) else 1
    sys.stderr.write("\n".join(said[-12:]) + "\n" if not named else "")
    raise error


def _kill(processes: list["subprocess.Popen[str]"]) -> None:
    for process in processes:
        process.kill()


def _stop(process: "subprocess.Popen[str]") -> None:
    assert process.stdin is not None
    # Closed input is the word to stop; a side in the middle of a long step is not waited for.
    with contextlib.suppress(OSError):
        process.stdin.close()
    process.terminate()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()
