"""All pictures and tables that compare several runs or arms, in the order a reader wants them. Knows no
page.
"""

import re
from dataclasses import replace

from sbpipe.runs import Run, Study
from sbpipe.show.charts import Chart
from sbpipe.show.report.arms import arm_table
from sbpipe.show.report.breakdown import breakdown_charts, breakdown_table
from sbpipe.show.report.curves import curve_charts
from sbpipe.show.report.grouping import Group, group_runs, group_study
from sbpipe.show.report.pareto import pareto_chart, pareto_shares
from sbpipe.show.report.sweeps import sweep_chart, sweep_table
from sbpipe.show.report.table import Table
from sbpipe.show.report.tasks import task_tables


def charts_of_many(runs: list[Run], studies: list[Study]) -> list[Chart]:
    """The charts of the plain runs together, then of each study; where there are several of these, each chart
    says whose it is.
    """
    groups = groups_of(runs, studies)
    charts: list[Chart] = []
    for index, group in enumerate(groups):
        whose = group.name or "runs"
        mark = f"{index + 1}-{re.sub(r'[^a-z0-9]+', '-', whose.lower()).strip('-')}"
        charts += [
            replace(chart, name=f"{chart.name}-{mark}", title=f"{chart.title}: {whose}")
            if len(groups) > 1
            else chart
            for chart in _charts_of(group)
        ]
    return charts


def tables_of_many(runs: list[Run], studies: list[Study]) -> list[Table]:
    """The tables of the plain runs together, then of each study; first, where studies have tasks, their arms
    by tasks.
    """
    matrices = [table for study in studies if study.tasks for table in task_tables(study)]
    return [*matrices, *(table for group in groups_of(runs, studies) for table in _tables_of(group))]


def groups_of(runs: list[Run], studies: list[Study]) -> list[Group]:
    """What is compared with what: plain runs with each other, a study's cells with each other, those of a
    task by themselves.
    """
    parts = [part for study in studies for part in study.parts() if part.cells]
    return [*([group_runs(runs)] if runs else []), *(group_study(part) for part in parts)]


def _charts_of(group: Group) -> list[Chart]:
    swept = [sweep_chart(group)] if group.kind == "sweep" else []
    pareto = pareto_chart(group)
    return [*swept, *curve_charts(group), *breakdown_charts(group), *([pareto] if pareto else [])]


def _tables_of(group: Group) -> list[Table]:
    shares = pareto_shares(group) if len(group.arms) > 1 else {}
    first = sweep_table(group) if group.kind == "sweep" else arm_table(group, shares)
    times = breakdown_table(group)
    return [first, *([times] if times else [])]
