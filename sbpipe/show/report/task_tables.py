"""A comparison as arms by tasks: final errors, and selection's instruments. Text only; computes nothing."""

from collections.abc import Mapping, Sequence
from typing import Any

from sbpipe.runs.study.analysis import INSTRUMENTS
from sbpipe.show.report.table import NOTHING, Table, number

_MARKS = {"lower": " ↓", "within": " =", "higher": " ↑"}
Tasks = Mapping[str, Mapping[str, Any]]
"""The analysis of each task."""


def task_tables(
    name: str, arms: Sequence[str], baseline: str | None, tasks: Tasks, cautions: Sequence[str] = ()
) -> list[Table]:
    """The matrix of final errors and, if any run has them, selection's instruments."""
    told = _instruments(arms, tasks)
    return [_errors(name, arms, baseline, tasks, cautions), *([told] if told.rows else [])]


def _errors(
    name: str, arms: Sequence[str], baseline: str | None, tasks: Tasks, cautions: Sequence[str]
) -> Table:
    rows = [
        [
            f"{arm} (baseline)" if arm == baseline else arm,
            *(_error(part["arms"].get(arm), is_baseline=arm == baseline) for part in tasks.values()),
        ]
        for arm in arms
    ]
    notes = [
        "mean ± standard deviation over the seeds that finished, and how many did",
        f"↓ lower than the error of {baseline}, with the same seeds, by more than the spread; ↑ higher by "
        "more than it; = within it; no mark: no spread is known",
        "spread: the standard deviation of the differences over seeds or, where fewer than two seeds are "
        "paired, the larger one of the two arms",
        "an arrow is no test: without any true difference chance draws one in about 4 of 10 cells with two "
        "seeds, 2 of 10 with three",
        f"{NOTHING}: planned, nothing finished; empty: not planned",
        *(f"caution: {text}" for text in cautions),
    ]
    title = f"comparison {name}: final test error in %, mean ± sd (n)"
    return Table(title, ["arm", *tasks], rows, notes=notes)


def _error(arm: dict[str, Any] | None, *, is_baseline: bool) -> str:
    """`12.34 ±0.56 (3) ↓`; empty for an arm that the task does not have."""
    if arm is None:
        return ""
    failed = f"{arm['failed']} failed" if arm["failed"] else ""
    if arm["error_mean"] is None:
        return f"{NOTHING} ({failed})" if failed else NOTHING
    trials = ", ".join(filter(None, [str(arm["n"]), failed]))
    mark = "" if is_baseline else _MARKS.get(arm["verdict"] or "", "")
    spread = "" if arm["error_sd"] is None else f" ±{100 * arm['error_sd']:.2f}"
    return f"{100 * arm['error_mean']:.2f}{spread} ({trials}){mark}"


def _instruments(arms: Sequence[str], tasks: Tasks) -> Table:
    """One row per task and arm whose runs have any of these numbers."""
    rows = []
    for task, part in tasks.items():
        for name in arms:
            values = part["arms"].get(name, {}).get("instruments", {})
            if any(value is not None for value in values.values()):
                rows.append([task, name, *(number(values[key], ".3f") for key in INSTRUMENTS)])
    note = (
        f"means over the seeds that finished, by the names of a run's summary; {NOTHING}: the run does not "
        "say"
    )
    return Table("what selection did", ["task", "arm", *INSTRUMENTS], rows, notes=[note])
