"""The end of a study: the page of tables, the report, and the last words in the terminal."""

from dataclasses import dataclass
from pathlib import Path

from sbpipe.files import write_atomically
from sbpipe.process.reporting import report_apart
from sbpipe.studies.outcome import Outcome
from sbpipe.studies.provenance import facts_of
from sbpipe.studies.results_file import CSV

PAGE = "results.md"


@dataclass(frozen=True)
class Conclusion:
    """The exit code of a study and its last words."""

    code: int
    text: str


def conclude(outcome: Outcome, path: Path, *, resume_with: str, with_report: bool) -> Conclusion:
    """Write page and report; returns where they are."""
    plan, num_cells = outcome.plan, len(outcome.plan.cells)
    if outcome.is_stopped:
        done = sum(result.is_finished for result in outcome.results)
        said = f"\nstopped with {done} of {num_cells} cells done\nresume with:  {resume_with}"
        return Conclusion(130, said)
    write_atomically(path / PAGE, page_of(outcome))
    tables = outcome.tables()
    has_details = any(table.is_detail for table in tables)
    lines = [
        "",
        *facts_of(plan, outcome.results),
        *("\n" + table.as_text() for table in tables if not table.is_detail),
        "",
        f"results:  {path / CSV}",
        f"tables:   {path / PAGE}" + (", those of each task too" if has_details and plan.tasks else ""),
        # In a separate process: if the report fails, the results stay.
        f"report:   {report_apart(path) if with_report else 'not asked for'}",
    ]
    if not outcome.failed:
        return Conclusion(0, "\n".join(lines))
    names = ", ".join(result.cell.label for result in outcome.failed)
    lines += [
        f"\n{len(outcome.failed)} of {num_cells} cells failed: {names}",
        f"try them again with:  {resume_with} --retry",
    ]
    return Conclusion(1, "\n".join(lines))


def page_of(outcome: Outcome) -> str:
    """`results.md`."""
    plan = outcome.plan
    facts = "\n".join(f"- {fact}" for fact in facts_of(plan, outcome.results))
    tables = [table.as_markdown() for table in outcome.tables()]
    return "\n".join([f"# {plan.kind.capitalize()}: {plan.name}", "", facts, "", *tables])
