"""A comparison over several tasks, arms by tasks: the final errors, and what selection did. Knows no picture.

How such tables are to be read is said here for everybody who shows them; each has its own way to write a
number.
"""

from collections.abc import Callable, Sequence
from statistics import mean
from typing import Any

from sbpipe.runs import Study
from sbpipe.runs.numbers import number
from sbpipe.runs.study import INSTRUMENTS
from sbpipe.show.report.arms import NOTHING, numbers_of, shown
from sbpipe.show.report.grouping import Group, group_study
from sbpipe.show.report.table import Table

_MARKS = {"lower": " ↓", "within": " =", "higher": " ↑"}


def errors_meaning(baseline: str | None, nothing: str) -> list[str]:
    """How to read the matrix of final errors, point by point; `nothing` stands where no number is."""
    return [
        "mean ± standard deviation over the seeds that finished, and how many did",
        f"↓ lower than the error of {baseline}, with the same seeds, by more than the spread; ↑ higher by "
        "more than it; = within it; "
        "no mark: no spread is known",
        "spread: the standard deviation of the differences over seeds or, where fewer than two seeds are "
        "paired, the larger one of the "
        "two arms",
        "an arrow is no test: without any true difference chance draws one in about 4 of 10 cells with two "
        "seeds, 2 of 10 with three",
        f"{nothing}: planned, nothing finished; empty: not planned",
    ]


def instruments_meaning(nothing: str) -> list[str]:
    """How to read the table of what selection did."""
    return [
        f"means over the seeds that finished, by the names of a run's summary; {nothing}: the run does not "
        "say"
    ]


def arm_name(arm: str, baseline: str | None) -> str:
    """An arm at the head of its row."""
    return f"{arm} (baseline)" if arm == baseline else arm


def error_cell(
    arm: dict[str, Any] | None, say: Callable[[float, float | None], str], nothing: str, *, is_baseline: bool
) -> str:
    """`12.34 ±0.56 (3) ↓`; empty for an arm that the task does not have. `say` writes a mean and its
    spread.
    """
    if arm is None:
        return ""
    failed = f"{arm['failed']} failed" if arm["failed"] else ""
    if arm["error_mean"] is None:
        return f"{nothing} ({failed})" if failed else nothing
    count = ", ".join(filter(None, [str(arm["n"]), failed]))
    mark = "" if is_baseline else _MARKS.get(arm.get("verdict") or "", "")
    return f"{say(arm['error_mean'], arm['error_sd'])} ({count}){mark}"


def task_tables(study: Study) -> list[Table]:
    """The matrix of final errors and, if any run tells, what selection did."""
    groups = {
        task: group_study(part) for task, part in zip(study.tasks, study.parts(), strict=True) if part.cells
    }
    arms = [arm for arm in study.plan.get("strategies") or study.arms if arm in study.arms]
    told = _instruments(study, groups, arms)
    return [_errors(study, groups, arms), *([told] if told.rows else [])]


def _errors(study: Study, groups: dict[str, Group], arms: list[str]) -> Table:
    rows = {task: {arm.name: numbers_of(arm, group) for arm in group.arms} for task, group in groups.items()}
    baseline = study.plan.get("baseline")
    body = [
        [
            arm_name(arm, baseline),
            *(
                error_cell(rows[task].get(arm), _in_percent, NOTHING, is_baseline=arm == baseline)
                for task in groups
            ),
        ]
        for arm in arms
    ]
    name = study.plan.get("name") or study.path.name
    return Table(
        f"Final test error (%), arms by tasks: {name}",
        ["arm", *groups],
        body,
        _as_text(errors_meaning(baseline, NOTHING)),
    )


def _in_percent(mean_error: float, sd: float | None) -> str:
    return shown(mean_error, sd, scale=100)


def _as_text(points: Sequence[str]) -> str:
    """Points as sentences of one paragraph."""
    return " ".join(f"{point[0].upper()}{point[1:]}." for point in points)


def _instruments(study: Study, groups: dict[str, Group], arms: list[str]) -> Table:
    rows = []
    for task, group in groups.items():
        by_name = {arm.name: arm for arm in group.arms}
        for name in (name for name in arms if name in by_name):
            means = []
            for key in INSTRUMENTS:
                values = [
                    value
                    for trial in by_name[name].finished
                    if (value := number(trial.numbers, key)) is not None
                ]
                means.append(mean(values) if values else None)
            if any(value is not None for value in means):
                rows.append([task, name, *(shown(value) for value in means)])
    name = study.plan.get("name") or study.path.name
    return Table(
        f"What selection did: {name}",
        ["task", "arm", *INSTRUMENTS],
        rows,
        _as_text(instruments_meaning(NOTHING)),
    )
