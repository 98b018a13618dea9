"""The texts on experiments: the list, each outcome, results.md and results.json. Runs nothing."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sbpipe.errors import RunDirError
from sbpipe.files import write_atomically
from sbpipe.show.report.table import markdown_row
from sbpipe.studies.reproduce.experiment import Experiment
from sbpipe.studies.reproduce.findings import Finding, overall

JSON, PAGE = "results.json", "results.md"
_COLUMNS = ("what", "measured", "verdict")


@dataclass(frozen=True)
class Entry:
    """One experiment that was run: its claim, findings, verdict and facts."""

    name: str
    shows: str
    claim: str
    is_quick: bool
    verdict: str
    findings: list[dict[str, str]]
    facts: list[str]
    runs: list[str]
    """The folders of its runs."""


def entry_of(
    experiment: Experiment,
    findings: Sequence[Finding],
    facts: Iterable[str],
    runs: Iterable[Path],
    *,
    quick: bool,
) -> Entry:
    """The record of an experiment; facts that several tasks share appear once."""
    return Entry(
        experiment.name,
        experiment.shows,
        experiment.claim,
        quick,
        overall(findings),
        [asdict(finding) for finding in findings],
        list(dict.fromkeys(facts)),
        [str(path) for path in runs],
    )


def listing(experiments: Iterable[Experiment]) -> str:
    """Every experiment: its name, what it shows, its claim, what it needs, how long it takes."""
    blocks = [
        f"{experiment.name:<10}{experiment.shows}\n"
        f"          {experiment.claim}\n"
        f"          needs {experiment.needs}\n"
        f"          about {experiment.takes}; --quick about {experiment.takes_quick}"
        for experiment in experiments
    ]
    return "\n\n".join(blocks)


def as_text(entry: Entry) -> str:
    """An outcome for a terminal."""
    lines = [_title(entry), f"  claim    {entry.claim}"]
    for finding in entry.findings:
        lines += [
            f"  part     {finding['what']}",
            f"           {finding['measured']}",
            f"           {finding['verdict']}",
        ]
    return "\n".join(
        [
            *lines,
            *(f"  {'facts' if k == 0 else '':<7}  {fact}" for k, fact in enumerate(entry.facts)),
            f"  verdict  {entry.verdict}",
        ]
    )


def as_line(entry: Entry) -> str:
    """An outcome in one line, for a list of several."""
    return f"{entry.name:<10}{entry.verdict}"


def as_markdown(entry: Entry) -> str:
    """An outcome for a page."""
    rows = [markdown_row([finding[key] for key in _COLUMNS]) for finding in entry.findings]
    facts = [f"- {fact}" for fact in [*entry.facts, *(f"runs: {path}" for path in entry.runs)]]
    head = [f"## {_title(entry)}", "", f"Claim: {entry.claim}", "", f"**{entry.verdict}**", ""]
    return "\n".join([*head, "| part | measured here | verdict |", "|---|---|---|", *rows, "", *facts]) + "\n"


def write(out: Path, new: Entry) -> None:
    """Add the outcome to the existing ones, in place of an earlier one of the same kind."""
    # A command runs some of the experiments; the page holds the last outcome of each.
    entries = [entry for entry in read(out) if (entry.name, entry.is_quick) != (new.name, new.is_quick)] + [
        new
    ]
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / JSON, json.dumps([asdict(entry) for entry in entries], indent=2) + "\n")
    head = (
        "# The paper's experiments, here\n\nEvery outcome is printed, whatever it is. ± is the standard "
        "deviation.\n"
    )
    write_atomically(out / PAGE, "\n".join([head, _overview(entries), *map(as_markdown, entries)]))


def read(out: Path) -> list[Entry]:
    """The existing outcomes."""
    try:
        rows: list[dict[str, Any]] = json.loads((out / JSON).read_text(encoding="utf-8"))
        return [Entry(**row) for row in rows]
    except FileNotFoundError:
        return []
    except (ValueError, TypeError):
        raise RunDirError(f"{out / JSON} cannot be read. Delete it, or choose another --out") from None


def _overview(entries: Sequence[Entry]) -> str:
    rows = [f"| {_title(entry)} | {entry.claim} | {entry.verdict} |" for entry in entries]
    return "\n".join(["| experiment | claim | here |", "|---|---|---|", *rows]) + "\n"


def _title(entry: Entry) -> str:
    return f"{entry.name}{' (quick)' if entry.is_quick else ''}: {entry.shows}"
