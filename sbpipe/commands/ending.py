"""What a command prints about a run that has ended."""

import json
from pathlib import Path
from typing import Any

from sbpipe.process.reporting import report_apart
from sbpipe.runs.checked import summary_of
from sbpipe.runs.names.files import CONFIG, SUMMARY
from sbpipe.show.terminal import summary_table, verdict_text


def read_summary(path: Path) -> dict[str, Any]:
    """The numbers of a run's summary; {} if there is none."""
    try:
        return summary_of(json.loads((path / SUMMARY).read_text(encoding="utf-8")))
    # A killed trainer leaves none, or an earlier run's.
    except (OSError, ValueError, RecursionError):
        return {}


def say_ending(path: Path, summary: dict[str, Any]) -> None:
    """Print how a run ended and where its files are."""
    if summary:
        verdict = verdict_text(summary)
        told = f"{verdict}\n\n{summary_table(summary)}" if verdict else summary_table(summary)
        print(f"\n{summary.get('status', 'ended')}\n{told}")
        numbers = f"   (every number: {SUMMARY})" if (path / SUMMARY).exists() else ""
        print(f"\nrun directory: {path}{numbers}")
    elif not (path / CONFIG).exists():
        print("\nstopped before the run began: there is nothing to resume")
        return
    else:
        print(f"\nkilled before it could leave a summary\nrun directory: {path}")
    # If the run directory could not be written, the spare folder has everything that a resume needs.
    where = Path(summary.get("checkpoint.spare") or path)
    if summary.get("status") != "finished" and (where / CONFIG).exists():
        print(f"resume with:   sbpipe run --run-dir {where} --resume")


def make_report(path: Path) -> None:
    """Make the page of a run and print where it is."""
    # Printed before the page is made, which takes a few seconds.
    print("report:        ", end="", flush=True)
    # Figures are drawn one by one and take longer than the page; `sbpipe report` makes them.
    print(report_apart(path, "--no-figures"))
