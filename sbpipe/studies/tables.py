"""Tables for the terminal and for Markdown, and the words every table of results stands under: hardware, n,
spread, versions.
"""

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sbpipe.show.terminal import duration, percent
from sbpipe.studies.beside import beside_words
from sbpipe.studies.plan import Plan, short, spoken
from sbpipe.studies.result import Result, num_beside

_OWN_SIDE_THREADS = 0.7
"""Load beyond one per core that a study makes by itself: loaders, links, the study's own process."""
_FADING_S = 180.0
"""After so long next to nothing of a past load is left in a mean over one minute."""


@dataclass(frozen=True)
class Table:
    """A titled table of words."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    notes: list[str] = field(default_factory=list)
    is_detail: bool = False
    """Too much for a terminal: it stands on the page alone."""

    def as_text(self) -> str:
        """For a terminal."""
        widths = [max(len(cell) for cell in column) for column in zip(self.columns, *self.rows, strict=True)]
        lines = [
            "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
            for row in [self.columns, *self.rows]
        ]
        return "\n".join(
            [self.title, *(f"  {line}".rstrip() for line in lines), *(f"  {note}" for note in self.notes)]
        )

    def as_markdown(self) -> str:
        """For a page."""
        rows = [self.columns, ["---"] * len(self.columns), *self.rows]
        lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
        notes = [f"- {note}" for note in self.notes]
        return "\n".join([f"## {self.title}", "", *lines, *(["", *notes] if notes else [])]) + "\n"


def percent_pm(mean: float | None, sd: float | None) -> str:
    """A share with its spread, in per cent."""
    return "–" if mean is None else f"{100 * mean:.2f}%" + ("" if sd is None else f" ±{100 * sd:.2f}")


def seconds_pm(mean: float | None, sd: float | None) -> str:
    """Seconds with their spread."""
    return "–" if mean is None else f"{mean:.1f}s" + ("" if sd is None else f" ±{sd:.1f}")


def number(value: float | None, form: str = ".2f") -> str:
    """A number, or a dash."""
    return "–" if value is None else format(value, form)


def sweep_table(plan: Plan, analysis: dict[str, Any]) -> Table:
    """A sweep, point by point."""
    keys = plan.swept
    factor = plan.targets[len(plan.targets) // 2]
    columns = [
        "arm",
        *map(short, keys),
        "n",
        "test error",
        "staleness",
        "fidelity",
        "trainer idle",
        "sent",
        "time",
        f"to {factor:g}x",
    ]
    rows = [_sweep_row(point, keys) for point in analysis["points"]]
    notes = [
        "± is the standard deviation over n seeds; time is until the end of training, start-up included, "
        "measuring excluded",
        f"to {factor:g}x is the time until the error is at most {factor:g} times "
        f"{percent(analysis['reference_error'])}, the first row's",
        *([f"caution: {beside_words(beside, len(plan.cells))}"] if (beside := analysis["beside"]) else []),
    ]
    return Table(f"sweep {plan.name}", columns, rows, notes)


def _sweep_row(point: dict[str, Any], keys: Sequence[str]) -> list[str]:
    sent = point["bytes_per_s_mean"]
    return [
        point["arm"],
        *(spoken(point["swept"][key]) for key in keys),
        str(point["n"]) + (f" ({point['failed']} failed)" if point["failed"] else ""),
        percent_pm(point["error_mean"], point["error_sd"]),
        number(point["staleness_mean"]),
        number(point["fidelity_mean"]),
        percent(point["idle_mean"]),
        "–" if sent is None else f"{sent / 2**20:.2f} MiB/s",
        seconds_pm(point["wall_mean"], point["wall_sd"]),
        f"– ({point['reached']}/{point['n']})"
        if point["reached"] < point["n"] or not point["n"]
        else f"{point['time_to_target_mean']:.1f}s",
    ]


def facts_of(plan: Plan, results: Sequence[Result]) -> list[str]:
    """What a reader must know to believe a table."""
    from sbpipe.machine.doctor.host import cpu

    finished = [result for result in results if result.is_finished]
    facts = [
        f"n = {_seeds_said(plan)}; {len(finished)} of {len(plan.cells)} cells finished; ± is the standard "
        "deviation",
    ]
    hosts = _said(finished, "host")
    is_here = hosts in ([], [platform.node()])
    where = (
        f"processor: {cpu().model}, {len(os.sched_getaffinity(0))} cores"
        if is_here
        else f"hosts: {', '.join(hosts)}"
    )
    facts.append(where)
    roles = sorted(
        {str(result.summary.get(key)) for result in finished for key in ("device.trainer", "device.selector")}
        - {"None"}
    )
    facts += [f"devices: {', '.join(roles)}"] if roles else []
    versions, commits = _said(finished, "versions"), _said(finished, "git_commit") + _without_commit(finished)
    facts += [f"versions: {text}" for text in versions] + [f"commit: {text}" for text in commits]
    if max(len(hosts), len(versions), len(commits)) > 1:
        facts.append(
            "caution: cells were run on different hosts or by different versions; their times do not compare"
        )
    facts += _busy(results, len(os.sched_getaffinity(0)))
    spent_s = sum(result.state.process_s or 0.0 for result in results)
    beside = num_beside(results)
    facts += [f"caution: {beside_words(beside, len(plan.cells))}"] if beside else []
    how = "some side by side" if beside else "one after another on the same cores"
    return [*facts, f"all runs together took {duration(spent_s)}, {how}, seed by seed"]


def _seeds_said(plan: Plan) -> str:
    """`3 (seeds 0, 1, 2)`, and the tasks that have others."""
    parts = [(task, plan.of_task(task).seeds) for task in plan.tasks]
    others = [f"{len(seeds)} for task {task}" for task, seeds in parts if seeds != plan.seeds]
    return ", ".join([f"{len(plan.seeds)} (seeds {', '.join(map(str, plan.seeds))})", *others])


def _said(results: Sequence[Result], key: str) -> list[str]:
    """What the cells' environments say under a key, each once."""
    found = [result.environment.get(key) for result in results]
    texts = [
        ", ".join(f"{name} {of}" for name, of in value.items()) if isinstance(value, dict) else value
        for value in found
    ]
    return sorted({str(text) for text in texts if text})


def _without_commit(results: Sequence[Result]) -> list[str]:
    """Cells that do not say which commit they ran: not the same as those that do."""
    count = sum(not result.environment.get("git_commit") for result in results)
    return [f"unknown ({count} cell{'' if count == 1 else 's'})"] if count else []


def _busy(results: Sequence[Result], cores: int) -> list[str]:
    """A caution if the machine had other things to do: two roles of the run before are all that should be
    left in the load.

    What cells side by side leave in the load is the study's own, in theirs and in that of a cell that begins
    soon after.
    """
    ends = [
        result.state.ended for result in results if result.state.beside and result.state.ended is not None
    ]
    alone = [result.state for result in results if not result.state.beside]
    clear = [state for state in alone if not any(0.0 <= state.started - ended < _FADING_S for ended in ends)]
    busiest = max((state.load or 0.0 for state in clear), default=0.0)
    if busiest <= cores + _OWN_SIDE_THREADS:
        return []
    return [
        f"caution: the machine was busy with other things (load {busiest:.1f} on {cores} cores); do not "
        "trust the times"
    ]


def page_of(plan: Plan, results: Sequence[Result], tables: Sequence[Table]) -> str:
    """`results.md`."""
    facts = "\n".join(f"- {fact}" for fact in facts_of(plan, results))
    return "\n".join(
        [
            f"# {plan.kind.capitalize()}: {plan.name}",
            "",
            facts,
            "",
            *(table.as_markdown() for table in tables),
        ]
    )
