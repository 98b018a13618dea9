"""What is left behind when a study ends: the page of tables, the report, and what there is to say about
both.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sbpipe.files import write_atomically
from sbpipe.process.reporting import report_apart
from sbpipe.studies.conduct import Outcome
from sbpipe.studies.plan import Plan
from sbpipe.studies.results import CSV
from sbpipe.studies.tables import Table, facts_of, page_of

PAGE = "results.md"


@dataclass(frozen=True)
class Ending:
    """The exit code of a study and its last words."""

    code: int
    text: str


def end(
    plan: Plan, path: Path, outcome: Outcome, tables: Sequence[Table], *, resume_with: str, with_report: bool
) -> Ending:
    """Write page and report, and say where things are; a report that cannot be made never costs the
    results.
    """
    if outcome.is_stopped:
        done = sum(result.is_finished for result in outcome.results)
        return Ending(
            130, f"\nstopped with {done} of {len(plan.cells)} cells done\ngo on with:  {resume_with}"
        )
    write_atomically(path / PAGE, page_of(plan, outcome.results, tables))
    lines = [
        "",
        *facts_of(plan, outcome.results),
        *("\n" + table.as_text() for table in tables if not table.is_detail),
        "",
        f"results:  {path / CSV}",
        f"tables:   {path / PAGE}"
        + (", those of each task too" if any(table.is_detail for table in tables) else ""),
    ]
    lines.append(f"report:   {report_apart(path) if with_report else 'not asked for'}")
    if not outcome.failed:
        return Ending(0, "\n".join(lines))
    names = ", ".join(result.cell.label for result in outcome.failed)
    lines.append(
        f"\n{len(outcome.failed)} of {len(plan.cells)} cells failed: {names}\ntry them again with:  "
        f"{resume_with} --retry"
    )
    return Ending(1, "\n".join(lines))
