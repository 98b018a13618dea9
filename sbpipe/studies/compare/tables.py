"""A comparison as tables: every arm is a row, whether it won or lost."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from sbpipe.show.terminal import percent
from sbpipe.studies.compare.arms import cautions
from sbpipe.studies.compare.matrix import task_tables
from sbpipe.studies.plan import Plan
from sbpipe.studies.tables import Table, number, percent_pm, seconds_pm

_PAIRED = (
    "seconds and speed-up over the baseline with the same seed, where every seed reached it; in "
    "brackets how many did"
)
_NO_BASELINE = (
    "caution: no run of the baseline {} has finished: no targets, no differences. Mend it, or "
    "name another baseline"
)


def comparison_tables(plan: Plan, analysis: dict[str, Any]) -> list[Table]:
    """All tables of a comparison; where there are tasks, first arms by tasks, then those of each task."""
    if not plan.tasks:
        return _tables(plan, analysis)
    details = [
        replace(
            table,
            title=table.title if plan.name in table.title else f"{table.title}, task {task}",
            is_detail=True,
        )
        for task, part in analysis["tasks"].items()
        for table in _tables(plan.of_task(task), part)
    ]
    return [*task_tables(plan, analysis), *details]


def _tables(plan: Plan, analysis: dict[str, Any]) -> list[Table]:
    """Final errors; then time, device-seconds and price to each target; then who provides the Pareto-optimal
    points.
    """
    if analysis["baseline_error"] is None:
        return [_finals(plan, analysis)]
    tables = [_finals(plan, analysis), _targets(analysis, "time to target", _time, [_PAIRED])]
    tables.append(
        _targets(analysis, "device-seconds to target", lambda there: _if_all(there, "device_s_mean", ".1f"))
    )
    if plan.price:
        tables.append(_targets(analysis, "price to target", lambda there: _if_all(there, "cost_mean", ".4f")))
    return [*tables, _pareto(analysis)]


def _finals(plan: Plan, analysis: dict[str, Any]) -> Table:
    columns = [
        "arm",
        "n",
        "test error",
        "difference",
        "trained",
        "time",
        "device-s",
        *(["price"] if plan.price else []),
        "Pareto",
    ]
    rows = []
    for name, arm in analysis["arms"].items():
        is_baseline = name == analysis["baseline"]
        rows.append(
            [
                name,
                _count(arm),
                percent_pm(arm["error_mean"], arm["error_sd"]),
                "baseline" if is_baseline else _difference(arm),
                number(arm["trained_mean"], ",.0f"),
                seconds_pm(arm["wall_mean"], arm["wall_sd"]),
                number(arm["device_s_mean"], ".1f"),
                *([number(arm["cost_mean"], ".4f")] if plan.price else []),
                percent(arm["pareto_share"]),
            ]
        )
    notes = [
        f"difference: test error minus that of {analysis['baseline']} with the same seed, in percentage "
        "points; ±: standard deviation",
        "trained: examples backpropagated; time: start-up included, measuring excluded; device-s: time x "
        "devices held",
        *(f"caution: {text}" for text in cautions(plan, analysis["beside"])),
        *([] if analysis["baseline_error"] is not None else [_NO_BASELINE.format(analysis["baseline"])]),
    ]
    return Table(f"comparison {plan.name}: final test error", columns, rows, notes)


def _targets(
    analysis: dict[str, Any], title: str, say: Callable[[dict[str, Any]], str], notes: Sequence[str] = ()
) -> Table:
    """One column per target: a factor of the baseline's mean final error."""
    columns = [
        "arm",
        *(f"{target['factor']:g}x = {percent(target['error'])}" for target in analysis["targets"]),
    ]
    rows = [[name, *(say(there) for there in arm["targets"])] for name, arm in analysis["arms"].items()]
    return Table(title, columns, rows, list(notes))


def _if_all(there: dict[str, Any], name: str, form: str) -> str:
    """A mean over all seeds; one over the lucky ones would flatter."""
    return number(there[name], form) if there["reached"] == there["of"] else "–"


def _time(there: dict[str, Any]) -> str:
    count = f"{there['reached']}/{there['of']}"
    if there["time_mean"] is None or there["reached"] < there["of"]:
        return f"– ({count})"
    spread = "" if there["speedup_sd"] is None else f" ±{there['speedup_sd']:.2f}"
    speedup = "" if there["speedup_mean"] is None else f", {there['speedup_mean']:.2f}x{spread}"
    if speedup and there["pairs"] != there["reached"]:
        speedup += f" of {there['pairs']} pairs"
    return f"{seconds_pm(there['time_mean'], there['time_sd'])}{speedup} ({count})"


def _pareto(analysis: dict[str, Any]) -> Table:
    rows = [[name, percent(share)] for name, share in analysis["strategies"].items()]
    note = "of all evaluations of all runs that no other one beats in time without losing in error"
    return Table("share of Pareto-optimal points by strategy", ["strategy", "share"], rows, [note])


def _count(arm: dict[str, Any]) -> str:
    return str(arm["n"]) + (f" ({arm['failed']} failed)" if arm["failed"] else "")


def _difference(arm: dict[str, Any]) -> str:
    mean, sd = arm["error_difference_mean"], arm["error_difference_sd"]
    return "–" if mean is None else f"{100 * mean:+.2f}" + ("" if sd is None else f" ±{100 * sd:.2f}")
