"""A comparison as tables, with a row for every arm. The numbers come from `runs.study.analysis`."""

from collections.abc import Callable, Sequence
from typing import Any

from sbpipe.show.report.table import NOTHING, Table, number, percent_pm, seconds_pm
from sbpipe.show.terminal import percent

Analysis = dict[str, Any]
_TRAINED = (
    "trained: examples backpropagated; time: start-up included, measuring excluded; "
    "device-s: time x devices held"
)
_PAIRED = (
    "seconds and speed-up over the baseline with the same seed, where every seed reached it; in "
    "brackets how many did"
)
_PARETO = "of all evaluations that are Pareto-optimal: no other one was as early and as accurate"


def comparison_tables(name: str, analysis: Analysis, cautions: Sequence[str] = ()) -> list[Table]:
    """Final errors; time, device-seconds and price to each target; shares of Pareto-optimal points."""
    if analysis["baseline_error"] is None:
        return [final_table(name, analysis, cautions)]
    tables = [
        final_table(name, analysis, cautions),
        time_table(analysis),
        _target_table("device-seconds to target", analysis, lambda at: _if_all(at, "device_s_mean", ".1f")),
    ]
    if _has_price(analysis):
        tables.append(_target_table("price to target", analysis, lambda at: _if_all(at, "cost_mean", ".4f")))
    rows = [[strategy, percent(share)] for strategy, share in analysis["strategies"].items()]
    title = "share of Pareto-optimal points by strategy"
    return [*tables, Table(title, ["strategy", "share"], rows, notes=[_PARETO])]


def final_table(name: str, analysis: Analysis, cautions: Sequence[str] = ()) -> Table:
    """Each arm's final error, and what it cost."""
    has_price, baseline = _has_price(analysis), analysis["baseline"]
    header = ["arm", "n", "test error", "difference", "trained", "time", "device-s"]
    rows = [
        [
            arm_name,
            count(arm),
            percent_pm(arm["error_mean"], arm["error_sd"]),
            "baseline" if arm_name == baseline else _difference(arm),
            number(arm["trained_mean"], ",.0f"),
            seconds_pm(arm["wall_mean"], arm["wall_sd"]),
            number(arm["device_s_mean"], ".1f"),
            *([number(arm["cost_mean"], ".4f")] if has_price else []),
            percent(arm["pareto_share"]),
        ]
        for arm_name, arm in analysis["arms"].items()
    ]
    against = (
        f"difference: test error minus that of {baseline} with the same seed, in percentage points; "
        "±: standard deviation"
    )
    missing = (
        f"caution: no run of the baseline {baseline} has finished: no targets, no differences. Run it again, "
        "or name another baseline"
    )
    notes = [
        *([against] if baseline else []),
        _TRAINED,
        *(f"caution: {text}" for text in cautions),
        *([missing] if baseline and analysis["baseline_error"] is None else []),
    ]
    title = f"comparison {name}: final test error" if name else "final test error"
    return Table(title, [*header, *(["price"] if has_price else []), "Pareto"], rows, notes=notes)


def time_table(analysis: Analysis) -> Table:
    """The seconds to each target, and the speed-up over the baseline."""
    return _target_table("time to target", analysis, _time, [_PAIRED])


def count(arm: dict[str, Any]) -> str:
    """How many trials finished, and how many did not."""
    return str(arm["n"]) + (f" ({arm['failed']} failed)" if arm["failed"] else "")


def _target_table(
    title: str, analysis: Analysis, say: Callable[[dict[str, Any]], str], notes: Sequence[str] = ()
) -> Table:
    """One column per target: a factor of the baseline's mean final error."""
    targets = [f"{target['factor']:g}x = {percent(target['error'])}" for target in analysis["targets"]]
    rows = [[name, *(say(at) for at in arm["targets"])] for name, arm in analysis["arms"].items()]
    return Table(title, ["arm", *targets], rows, notes=list(notes))


def _has_price(analysis: Analysis) -> bool:
    return any(arm["cost_mean"] is not None for arm in analysis["arms"].values())


def _if_all(at: dict[str, Any], name: str, form: str) -> str:
    """A mean over all seeds; a mean over only those that reached the target would be biased."""
    return number(at[name], form) if at["reached"] == at["of"] else NOTHING


def _time(at: dict[str, Any]) -> str:
    reached = f"{at['reached']}/{at['of']}"
    if at["time_mean"] is None or at["reached"] < at["of"]:
        return f"{NOTHING} ({reached})"
    spread = "" if at["speedup_sd"] is None else f" ±{at['speedup_sd']:.2f}"
    speedup = "" if at["speedup_mean"] is None else f", {at['speedup_mean']:.2f}x{spread}"
    if speedup and at["pairs"] != at["reached"]:
        # A seed that the baseline lacks has a time, but no speed-up.
        speedup += f" of {at['pairs']} pairs"
    return f"{seconds_pm(at['time_mean'], at['time_sd'])}{speedup} ({reached})"


def _difference(arm: dict[str, Any]) -> str:
    mean, sd = arm["error_difference_mean"], arm["error_difference_sd"]
    return NOTHING if mean is None else f"{100 * mean:+.2f}" + ("" if sd is None else f" ±{100 * sd:.2f}")
