"""What a command says of a run that has ended."""

import json
import subprocess
from pathlib import Path
from typing import Any

from sbpipe.launch import SAYS, role_command
from sbpipe.progress import summary_table
from sbpipe.run_dir import SUMMARY


def read_summary(path: Path) -> dict[str, Any]:
    """The numbers a run left; {} if it left none."""
    try:
        return dict(json.loads((path / SUMMARY).read_text(encoding="utf-8")))
    except OSError:
        return {}


def say_ending(path: Path, summary: dict[str, Any]) -> None:
    """Say how a run ended and where its files are."""
    if summary:
        print(f"\n{summary['status']}\n{summary_table(summary)}")
    print(f"\nrun directory: {path}\nsummary:       {path / SUMMARY}")
    if summary.get("status") == "stopped":
        print(f"go on with:    sbpipe run --run-dir {path} --resume")


def make_report(path: Path) -> None:
    """Make the page of a run, in a process of its own: the run is done, and nothing that goes wrong here may say otherwise."""
    done = subprocess.run(role_command("report", str(path), "--no-figures"), capture_output=True, text=True, check=False)
    if done.returncode == 0:
        print(f"report:        {path / 'report.html'}")
    else:
        reason = (done.stderr.strip().splitlines() or ["it ended without a word"])[-1].removeprefix(SAYS)
        print(f"report:        not made: {reason}")
