"""Arms by tasks: who ended where, and what selection did there. Words only; the numbers are those of each
task's own analysis.
"""

from typing import Any

from sbpipe.runs.study import INSTRUMENTS
from sbpipe.show.report.tasks import arm_name, error_cell, errors_meaning, instruments_meaning
from sbpipe.studies.compare.arms import cautions
from sbpipe.studies.plan import Plan
from sbpipe.studies.tables import Table, number

_NOTHING = "–"


def task_tables(plan: Plan, analysis: dict[str, Any]) -> list[Table]:
    """The matrix of final errors and, if any run tells, what selection did."""
    told = _instruments(plan, analysis)
    return [_errors(plan, analysis), *([told] if told.rows else [])]


def _errors(plan: Plan, analysis: dict[str, Any]) -> Table:
    rows = [
        [
            arm_name(arm, plan.baseline),
            *(
                error_cell(
                    analysis["tasks"][task]["arms"].get(arm),
                    _in_percent,
                    _NOTHING,
                    is_baseline=arm == plan.baseline,
                )
                for task in plan.tasks
            ),
        ]
        for arm in _arms(plan)
    ]
    notes = [*errors_meaning(plan.baseline, _NOTHING), *(f"caution: {text}" for text in cautions(plan))]
    return Table(
        f"comparison {plan.name}: final test error in %, mean ± sd (n)", ["arm", *plan.tasks], rows, notes
    )


def _in_percent(mean: float, sd: float | None) -> str:
    return f"{100 * mean:.2f}" + ("" if sd is None else f" ±{100 * sd:.2f}")


def _instruments(plan: Plan, analysis: dict[str, Any]) -> Table:
    """One row per task and arm of which a run says anything."""
    rows = []
    for task, part in analysis["tasks"].items():
        for name in _arms(plan):
            values = part["arms"].get(name, {}).get("instruments", {})
            if any(value is not None for value in values.values()):
                rows.append([task, name, *(number(values.get(key), ".3f") for key in INSTRUMENTS)])
    return Table("what selection did", ["task", "arm", *INSTRUMENTS], rows, instruments_meaning(_NOTHING))


def _arms(plan: Plan) -> list[str]:
    """The arms in the file's order, which the first task's cells need not show."""
    return [arm for arm in plan.strategies if arm in plan.arms]
