"""The outcome of a study: its results, their analysis, and the tables of it. Starts nothing."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sbpipe.runs.study.analysis import analyse_comparison, analyse_sweep
from sbpipe.runs.study.arm import Arm
from sbpipe.runs.study.trial import Trial
from sbpipe.runs.study.worth import analyse_worth
from sbpipe.show.report.comparison_tables import comparison_tables, final_table
from sbpipe.show.report.sweep_table import sweep_table
from sbpipe.show.report.table import Table
from sbpipe.show.report.task_tables import task_tables
from sbpipe.show.report.worth_tables import worth_tables
from sbpipe.studies import worth_plan
from sbpipe.studies.comparison_plan import weaknesses
from sbpipe.studies.core_shares import beside_words
from sbpipe.studies.plan import SWEEP, WORTH, Plan
from sbpipe.studies.result import Result


@dataclass(frozen=True)
class Outcome:
    """A plan with its results when the conductor stops."""

    plan: Plan
    results: list[Result]
    analysis: dict[str, Any]
    is_stopped: bool = False

    @property
    def failed(self) -> list[Result]:
        """The cells that failed."""
        return [result for result in self.results if not result.is_finished]

    def tables(self) -> list[Table]:
        """The tables of the analysis."""
        return tables_of(self.plan, self.analysis)


def analyse(plan: Plan, results: Sequence[Result]) -> dict[str, Any]:
    """The analysis of a study, as in `results.json`; with tasks, each task is analysed by itself."""
    if plan.kind == SWEEP:
        return analyse_sweep(arms_of(plan, results), plan.targets)
    if not plan.tasks:
        return _analyse_arms(plan, results)
    beside = sum(result.state.beside > 0 for result in results)
    tasks = {task: _analyse_arms(plan.of_task(task), results) for task in plan.tasks}
    return {"baseline": plan.baseline, "beside": beside, "tasks": tasks}


def arms_of(plan: Plan, results: Sequence[Result]) -> list[Arm]:
    """The plan's arms, at every point of its grid, with the trials that have ended."""
    trials: dict[str, list[Trial]] = {cell.point: [] for cell in plan.cells}
    for result in results:
        if result.cell.point in trials:
            trials[result.cell.point].append(result.trial)
    first = {cell.point: cell for cell in reversed(plan.cells)}
    return [Arm(first[point].arm, of, first[point].swept, first[point].arm) for point, of in trials.items()]


def tables_of(plan: Plan, analysis: dict[str, Any]) -> list[Table]:
    """All tables of a study; with tasks, first arms by tasks, then the tables of each task."""
    if plan.kind == SWEEP:
        return [sweep_table(plan.name, plan.swept, analysis, _beside(plan, analysis))]
    if plan.kind == WORTH:
        return _worth_tables(plan, analysis)
    if not plan.tasks:
        return comparison_tables(plan.name, analysis, _cautions(plan, analysis))
    arms = [arm for arm in plan.strategies if arm in plan.arms]
    matrices = task_tables(plan.name, arms, plan.baseline, analysis["tasks"], weaknesses(plan))
    details = [
        table
        for task, part in analysis["tasks"].items()
        for table in _details(plan.of_task(task), task, part)
    ]
    return [*matrices, *details]


def _analyse_arms(plan: Plan, results: Sequence[Result]) -> dict[str, Any]:
    arms = arms_of(plan, results)
    found = analyse_comparison(
        arms, plan.baseline, plan.targets, price=plan.price, strategies=plan.strategies
    )
    return found if plan.kind != WORTH else found | {"worth": analyse_worth(arms, plan.budgets)}


def _worth_tables(plan: Plan, analysis: dict[str, Any]) -> list[Table]:
    parts = analysis.get("tasks") or {"": analysis}
    finals = [
        final_table(f"{plan.name}, task {task}" if task else plan.name, part) for task, part in parts.items()
    ]
    worths = {task: part["worth"] for task, part in parts.items()}
    tables = worth_tables(plan.name, worths, worth_plan.weaknesses(plan))
    return [*tables, *(replace(table, is_detail=True) for table in finals)]


def _details(plan: Plan, task: str, analysis: dict[str, Any]) -> list[Table]:
    finals, *others = comparison_tables(plan.name, analysis, _cautions(plan, analysis))
    named = [finals, *(replace(table, title=f"{table.title}, task {task}") for table in others)]
    return [replace(table, is_detail=True) for table in named]


def _cautions(plan: Plan, analysis: dict[str, Any]) -> list[str]:
    return [*weaknesses(plan), *_beside(plan, analysis)]


def _beside(plan: Plan, analysis: dict[str, Any]) -> list[str]:
    return [beside_words(analysis["beside"], len(plan.cells))] if analysis["beside"] else []
