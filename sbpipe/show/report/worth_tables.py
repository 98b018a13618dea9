"""A study of worth as tables: k of every policy, and random's curve. Text only; computes nothing."""

from collections.abc import Mapping, Sequence
from typing import Any

from sbpipe.runs.study.worth import INTERVAL, stated_interval, stated_worth
from sbpipe.show.report.table import NOTHING, Table, number, percent_pm

Parts = Mapping[str, Mapping[str, Any]]
"""The analysis of worth by task; a study without tasks has one task with an empty name."""
_MEANING = (
    "k: updates that random selection needs, its rate decayed inside its own budget, to end at the same "
    "error, over the updates used; 2 = half the updates, 1 = as random, below 1 = worse"
)
_INTERVAL = (
    f"interval: {100 * INTERVAL:.0f} % of the draws of seeds with replacement, random and policy together"
)


def worth_tables(name: str, parts: Parts, cautions: Sequence[str] = ()) -> list[Table]:
    """The worth of each policy, then random's curve, which it is measured against."""
    return [worth_table(name, parts, cautions), _curve_table(parts)]


def worth_table(name: str, parts: Parts, cautions: Sequence[str] = ()) -> Table:
    """A row per task and policy, and a sentence on each."""
    has_tasks = any(parts)
    rows = [
        [*([task] if has_tasks else []), policy, *_row(part, of)]
        for task, part in parts.items()
        for policy, of in part["policies"].items()
    ]
    header = ["policy", "n", "updates", "test error", "random at as many", "worth k", "interval"]
    sentences = [
        f"{f'{task}: ' if task else ''}{sentence(policy, of)}"
        for task, part in parts.items()
        for policy, of in part["policies"].items()
    ]
    flat = [
        f"caution: {f'{task}: ' if task else ''}random's curve is flat from {part['flat_from']:,.0f} updates "
        "on (it falls by less than one run's spread): near the error floor k is not determined"
        for task, part in parts.items()
        if part["flat_from"] is not None
    ]
    notes = [*sentences, _MEANING, _INTERVAL, *flat, *(f"caution: {text}" for text in cautions)]
    return Table(
        f"worth {name}" if name else "worth", [*(["task"] if has_tasks else []), *header], rows, notes=notes
    )


def sentence(policy: str, of: Mapping[str, Any]) -> str:
    """What k means for a decision."""
    said, interval = stated_worth(of), stated_interval(of)
    if not said:
        return f"{policy}: not known yet, too few runs have finished"
    k = f"{said} ({interval})" if interval else said
    if of["is_flat"]:
        return f"{policy}: k {k}, where random hardly falls any more: more updates or harder data would tell"
    if interval and _includes_random(of):
        return f"{policy} cannot be told from random selection with these seeds, k {k}"
    if of["beyond"] == "above":
        return f"{policy} is worth more than was measured, k {k}: add a larger budget to know it"
    if of["beyond"] == "below" or (interval and of["high"] is not None and of["high"] < 1.0):
        return f"{policy} is worse than random selection, k {k}: do not use it for this job"
    updates = of["updates"]
    needs = f"random needs {of['worth'] * updates:,.0f} updates to end where it ends after {updates:,.0f}"
    return f"{policy} is worth k {k}{'' if interval else ' by one seed'}: {needs}"


def _includes_random(of: Mapping[str, Any]) -> bool:
    """Whether the interval includes 1; an open end of it lies beyond every budget on its side."""
    low, high = of["low"], of["high"]
    return (low is None or low <= 1.0) and (high is None or high >= 1.0)


def _row(part: Mapping[str, Any], of: Mapping[str, Any]) -> list[str]:
    return [
        str(of["n"]) + (f", {of['failed']} failed" if of["failed"] else ""),
        number(of["updates"], ",.0f"),
        percent_pm(of["error_mean"], of["error_sd"]),
        _random_at(part, of["updates"]),
        (stated_worth(of) or NOTHING) + (" (flat)" if of["is_flat"] else ""),
        stated_interval(of) or NOTHING,
    ]


def _random_at(part: Mapping[str, Any], updates: float | None) -> str:
    """Random's error at equally many updates, if there is such a budget."""
    return next(
        (
            percent_pm(point["error_mean"], point["error_sd"])
            for point in part["curve"]
            if updates is not None and abs(point["updates"] - updates) <= 0.5
        ),
        NOTHING,
    )


def _curve_table(parts: Parts) -> Table:
    has_tasks = any(parts)
    rows = [
        [
            *([task] if has_tasks else []),
            point["arm"],
            str(point["n"]) + (f", {point['failed']} failed" if point["failed"] else ""),
            f"{point['updates']:,.0f}",
            percent_pm(point["error_mean"], point["error_sd"]),
            percent_pm(point["curve"], None),
        ]
        for task, part in parts.items()
        for point in part["curve"]
    ]
    notes = [
        "curve: the mean errors made monotone, so that more updates never count as worse; k is read off it"
    ]
    header = [*(["task"] if has_tasks else []), "arm", "n", "updates", "test error", "curve"]
    return Table("random selection, decayed inside each budget", header, rows, notes=notes)
