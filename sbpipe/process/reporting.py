"""Makes a report in a separate process: if that fails, the run or study is still complete."""

import subprocess
from pathlib import Path

from sbpipe.process.child import SAYS, role_command
from sbpipe.runs.names.files import REPORT


def report_apart(path: Path, *flags: str) -> str:
    """Make the report of a run or a study; returns where it is, or why there is none."""
    done = subprocess.run(
        role_command("report", str(path), *flags), capture_output=True, text=True, check=False
    )
    if done.returncode == 0:
        return str(path / REPORT)
    reason = (done.stderr.strip().splitlines() or ["it ended without a message"])[-1].removeprefix(SAYS)
    return f"none: {reason}"
