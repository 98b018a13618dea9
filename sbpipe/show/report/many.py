"""All charts and tables that compare several runs or arms, in reading order."""

import re
from collections.abc import Sequence
from dataclasses import replace

from sbpipe.runs import Run, Study
from sbpipe.runs.study.arm_group import ArmGroup, group_runs, group_study
from sbpipe.show.charts import Chart
from sbpipe.show.report.breakdown import breakdown_charts, breakdown_table
from sbpipe.show.report.comparison_tables import final_table, time_table
from sbpipe.show.report.curves import curve_charts
from sbpipe.show.report.pareto_chart import pareto_chart
from sbpipe.show.report.sweep_chart import sweep_chart
from sbpipe.show.report.sweep_table import sweep_table
from sbpipe.show.report.table import Table
from sbpipe.show.report.task_tables import task_tables
from sbpipe.show.report.worth_chart import worth_chart
from sbpipe.show.report.worth_tables import worth_tables


def charts_of_many(runs: list[Run], studies: list[Study]) -> list[Chart]:
    """The charts of the plain runs together, then of each study; with several groups, titles name them."""
    groups = groups_of(runs, studies)
    charts: list[Chart] = []
    for index, group in enumerate(groups):
        whose = group.name or "runs"
        # Two studies may have the same name, and a chart's name is a file and an anchor.
        mark = f"{index + 1}-{re.sub(r'[^a-z0-9]+', '-', whose.lower()).strip('-')}"
        charts += [
            replace(chart, name=f"{chart.name}-{mark}", title=f"{chart.title}: {whose}")
            if len(groups) > 1
            else chart
            for chart in _charts_of(group)
        ]
    return charts


def tables_of_many(runs: list[Run], studies: list[Study]) -> list[Table]:
    """Tables over all tasks of a study first; then the tables of the plain runs and of each study."""
    matrices = [table for study in studies for table in _overview(study)]
    return [*matrices, *(table for group in groups_of(runs, studies) for table in _tables_of(group))]


def groups_of(runs: list[Run], studies: list[Study]) -> list[ArmGroup]:
    """The groups to compare: plain runs with each other, and the cells of each study or of each task."""
    parts = [part for study in studies for part in study.parts() if part.cells]
    return [*([group_runs(runs)] if runs else []), *(group_study(part) for part in parts)]


def _charts_of(group: ArmGroup) -> list[Chart]:
    if group.kind == "worth":
        return [worth_chart(group)]
    swept = [sweep_chart(group)] if group.kind == "sweep" else []
    pareto = pareto_chart(group)
    return [*swept, *curve_charts(group), *breakdown_charts(group), *([pareto] if pareto else [])]


def _overview(study: Study) -> Sequence[Table]:
    if not study.tasks and study.kind != "worth":
        return []
    parts = zip(study.tasks or [""], study.parts(), strict=True)
    tasks = {task: group_study(part).analysis for task, part in parts if part.cells}
    name = str(study.plan.get("name") or study.path.name)
    if study.kind == "worth":
        return worth_tables(name, {task: part["worth"] for task, part in tasks.items()})
    arms = [arm for arm in study.plan.get("strategies") or study.arms if arm in study.arms]
    return task_tables(name, arms, study.plan.get("baseline"), tasks)


def _tables_of(group: ArmGroup) -> list[Table]:
    times = breakdown_table(group)
    return [*_results_of(group), *([times] if times else [])]


def _results_of(group: ArmGroup) -> list[Table]:
    """The most important of the tables that a study prints."""
    if group.kind == "sweep":
        keys = dict.fromkeys([*group.swept, *(key for arm in group.arms for key in arm.swept)])
        return [sweep_table(group.name, list(keys), group.analysis)]
    finals = final_table(group.name, group.analysis)
    if group.kind == "worth":
        return [finals]
    if group.kind == "runs" and group.reference:
        finals = replace(
            finals, notes=[*finals.notes, f"the baseline is {group.reference}, {group.reference_is}"]
        )
    if not group.targets:
        return [finals]
    times = time_table(group.analysis)
    return [finals, replace(times, title=f"{times.title}: {group.name}" if group.name else times.title)]
