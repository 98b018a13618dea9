"""Arms by tasks: who ended where, and what selection did there. Words only; the numbers are those of each task's own analysis."""

from typing import Any

from sbpipe.compare.arms import cautions
from sbpipe.logbook.study import INSTRUMENTS
from sbpipe.report.tasks import MARKS
from sbpipe.study.plan import Plan
from sbpipe.study.tables import Table, number

_CAPTION = (
    "↓ lower than the error of {}, with the same seeds, by more than the spread; ↑ higher by more than it; = within it; no mark: no spread is known",
    "spread: the standard deviation of the differences over seeds or, where fewer than two seeds are paired, the larger one of the two arms",
    "an arrow is no test: without any true difference chance draws one in about 4 of 10 cells with two seeds, 2 of 10 with three",
    "–: planned, nothing finished; empty: not planned",
)
_MEANING = "means over the seeds that finished, by the names of a run's summary; –: the run does not say"


def task_tables(plan: Plan, analysis: dict[str, Any]) -> list[Table]:
    """The matrix of final errors and, if any run tells, what selection did."""
    told = _instruments(plan, analysis)
    return [_errors(plan, analysis), *([told] if told.rows else [])]


def _errors(plan: Plan, analysis: dict[str, Any]) -> Table:
    rows = [
        [
            f"{arm} (baseline)" if arm == plan.baseline else arm,
            *(error_cell(analysis["tasks"][task]["arms"].get(arm), is_baseline=arm == plan.baseline) for task in plan.tasks),
        ]
        for arm in _arms(plan)
    ]
    notes = [text.format(plan.baseline) for text in _CAPTION]
    notes += [f"caution: {text}" for text in cautions(plan)]
    return Table(f"comparison {plan.name}: final test error in %, mean ± sd (n)", ["arm", *plan.tasks], rows, notes)


def error_cell(arm: dict[str, Any] | None, *, is_baseline: bool) -> str:
    """`12.34 ±0.56 (3) ↓`; empty for an arm that the task does not have."""
    if arm is None:
        return ""
    failed = f"{arm['failed']} failed" if arm["failed"] else ""
    if arm["error_mean"] is None:
        return f"– ({failed})" if failed else "–"
    spread = "" if arm["error_sd"] is None else f" ±{100 * arm['error_sd']:.2f}"
    count = ", ".join(filter(None, [str(arm["n"]), failed]))
    mark = "" if is_baseline else MARKS.get(arm["verdict"], "")
    return f"{100 * arm['error_mean']:.2f}{spread} ({count}){mark}"


def _instruments(plan: Plan, analysis: dict[str, Any]) -> Table:
    """One row per task and arm of which a run says anything."""
    rows = []
    for task, part in analysis["tasks"].items():
        for name in _arms(plan):
            values = part["arms"].get(name, {}).get("instruments", {})
            if any(value is not None for value in values.values()):
                rows.append([task, name, *(number(values.get(key), ".3f") for key in INSTRUMENTS)])
    return Table("what selection did", ["task", "arm", *INSTRUMENTS], rows, [_MEANING])


def _arms(plan: Plan) -> list[str]:
    """The arms in the file's order, which the first task's cells need not show."""
    return [arm for arm in plan.strategies if arm in plan.arms]
