"""A comparison over several tasks, arms by tasks: the final errors, and what selection did. Knows no picture."""

from statistics import mean
from typing import Any

from sbpipe.logbook import Study
from sbpipe.logbook.numbers import number
from sbpipe.logbook.study import INSTRUMENTS
from sbpipe.report.arms import NOTHING, numbers_of, shown
from sbpipe.report.grouping import Group, group_study
from sbpipe.report.table import Table

MARKS = {"lower": " ↓", "within": " =", "higher": " ↑"}


def task_tables(study: Study) -> list[Table]:
    """The matrix of final errors and, if any run tells, what selection did."""
    groups = {task: group_study(part) for task, part in zip(study.tasks, study.parts(), strict=True) if part.cells}
    arms = [arm for arm in study.plan.get("strategies") or study.arms if arm in study.arms]
    told = _instruments(study, groups, arms)
    return [_errors(study, groups, arms), *([told] if told.rows else [])]


def _errors(study: Study, groups: dict[str, Group], arms: list[str]) -> Table:
    rows = {task: {arm.name: numbers_of(arm, group) for arm in group.arms} for task, group in groups.items()}
    baseline = study.plan.get("baseline")
    body = [
        [
            f"{arm} (baseline)" if arm == baseline else arm,
            *(_error_shown(rows[task].get(arm), is_baseline=arm == baseline) for task in groups),
        ]
        for arm in arms
    ]
    meaning = (
        f"Mean ± standard deviation over the seeds that finished, and how many did. ↓ lower than the error of {baseline}, with the same seeds, by "
        "more than the spread; ↑ higher by more than it; = within it. The spread is the standard deviation of the differences over seeds "
        f"or, where fewer than two seeds are paired, the larger one of the two arms; without any there is no mark. An arrow is no test: without "
        "any true difference chance draws one in about 4 of 10 cells with two seeds, 2 of 10 with three. "
        f"{NOTHING}: planned, nothing "
        "finished; empty: not planned."
    )
    name = study.plan.get("name") or study.path.name
    return Table(f"Final test error (%), arms by tasks: {name}", ["arm", *groups], body, meaning)


def _error_shown(arm: dict[str, Any] | None, *, is_baseline: bool) -> str:
    if arm is None:
        return ""
    failed = f"{arm['failed']} failed" if arm["failed"] else ""
    if arm["error_mean"] is None:
        return f"{NOTHING} ({failed})" if failed else NOTHING
    count = ", ".join(filter(None, [str(arm["n"]), failed]))
    mark = "" if is_baseline else MARKS.get(arm.get("verdict") or "", "")
    return f"{shown(arm['error_mean'], arm['error_sd'], scale=100)} ({count}){mark}"


def _instruments(study: Study, groups: dict[str, Group], arms: list[str]) -> Table:
    rows = []
    for task, group in groups.items():
        by_name = {arm.name: arm for arm in group.arms}
        for name in (name for name in arms if name in by_name):
            means = []
            for key in INSTRUMENTS:
                values = [value for trial in by_name[name].finished if (value := number(trial.numbers, key)) is not None]
                means.append(mean(values) if values else None)
            if any(value is not None for value in means):
                rows.append([task, name, *(shown(value) for value in means)])
    meaning = f"Means over the seeds that finished, by the names of a run's summary; {NOTHING}: the run does not say."
    name = study.plan.get("name") or study.path.name
    return Table(f"What selection did: {name}", ["task", "arm", *INSTRUMENTS], rows, meaning)
