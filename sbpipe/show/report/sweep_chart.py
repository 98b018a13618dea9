"""The effect of a swept setting: error, speed, idling, staleness, fidelity and traffic over its values."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sbpipe.runs.numbers import is_number
from sbpipe.runs.study.arm import Arm
from sbpipe.runs.study.arm_group import ArmGroup
from sbpipe.runs.study.spread import mean_of, sd_of
from sbpipe.runs.study.trial import Trial
from sbpipe.show.charts import Chart
from sbpipe.show.report.scales import GREY, arm_colour, legend, without_data

PANEL = {"width": 270, "height": 150}
ALL = "all"
"""The only line of a sweep whose cells differ in nothing but the x axis."""


@dataclass(frozen=True)
class Measure:
    """One number of a trial, and its label."""

    label: str
    of: Callable[[Trial], float | None]


@dataclass(frozen=True)
class GridPlace:
    """An arm's place in a sweep: its value of the swept setting, and its line."""

    key: str
    x: float | str
    line: str


def place_of(arm: Arm, group: ArmGroup) -> GridPlace:
    """The first swept number, else the first setting, is the x axis; the others make the line."""
    keys = [key for key in group.swept if key in arm.swept] or list(arm.swept)
    if not keys:
        return GridPlace("arm", arm.name, ALL)
    key = next((key for key in keys if is_number(arm.swept[key])), keys[0])
    value = arm.swept[key]
    others = [(other, str(arm.swept[other])) for other in keys if other != key]
    parts = [value if other == "mode" else f"{other}={value}" for other, value in others]
    labels = [other.label for other in group.arms]
    # Modes are often both arm and swept value: they are named once.
    if labels.count(arm.label) > 1 and len(set(labels)) > 1:
        parts = [
            arm.label,
            *(part for part, (_, value) in zip(parts, others, strict=True) if value not in arm.label),
        ]
    return GridPlace(key, value if is_number(value) else str(value), ", ".join(parts) or ALL)


def measures_of(group: ArmGroup) -> list[Measure]:
    """The measures that are drawn and listed; the time is to the middle target."""
    measures = [Measure("final test error (%)", _scaled(100, lambda trial: trial.final_error))]
    if group.targets:
        error = group.targets[len(group.targets) // 2].error
        label = f"time to {100 * error:.2f} % error (s)"
        measures.append(Measure(label, lambda trial: trial.time_to(error)))
    return [
        *measures,
        Measure("trainer idle (%)", _summary("trainer.idle_ratio", 100)),
        Measure("mean staleness (steps)", _summary("staleness.mean")),
        Measure("fidelity (Spearman)", _summary("fidelity.spearman")),
        Measure("weights sent (MiB/s)", _summary("sync.bytes_per_s", 2**-20)),
        *(
            measure
            for measure in LOOP_MEASURES
            if any(measure.of(trial) is not None for arm in group.arms for trial in arm.finished)
        ),
    ]


def sweep_chart(group: ArmGroup) -> Chart:
    """The chart: a panel per measure that a finished cell has."""
    places = {arm.name: place_of(arm, group) for arm in group.arms}
    keys = " or ".join(dict.fromkeys(place.key for place in places.values()))
    lines = list(dict.fromkeys(place.line for place in places.values()))
    x = _x_axis(keys, list(dict.fromkeys(place.x for place in places.values())))
    panels, absent = [], []
    for measure in measures_of(group):
        seeds = [row for arm in group.arms for row in _seed_rows(arm, places[arm.name], measure)]
        means = [_mean_row(arm, places[arm.name], measure) for arm in group.arms]
        if seeds:
            panels.append(_panel(measure, means, seeds, x, lines))
        else:
            absent.append(measure.label)
    title = f"Sweep over {keys}"
    if not panels:
        return without_data("sweep", title, "No cell has finished.", group.notes)
    absent_note = (f"No finished cell has: {', '.join(absent)}.",) if absent else ()
    rows = [{"hconcat": panels[k : k + 2], "spacing": 34} for k in range(0, len(panels), 2)]
    spec = {"vconcat": rows, "spacing": 26}
    return Chart("sweep", title, _meaning(keys, group), spec, (*absent_note, *group.notes))


def _meaning(keys: str, group: ArmGroup) -> str:
    said = (
        f"What {keys} does. Each mark is the mean over the seeds that finished, its bar ± one standard "
        "deviation, pale dots are the seeds. A line is broken where not every seed has the number, as where "
        "a target was not reached by all: a mean over the lucky ones would flatter."
    )
    if not group.targets:
        return said
    return f"{said} Targets are multiples of the final error of {group.reference} ({group.reference_is})."


def _panel(
    measure: Measure, means: list[Any], seeds: list[Any], x: dict[str, Any], lines: list[str]
) -> dict[str, Any]:
    """Lines over numbers, bars over words; the spread as a rule, the seeds as dots."""
    is_numeric = x["type"] == "quantitative"
    bottom = legend("arm", lines) if lines != [ALL] else None
    colour = {"field": "line", "type": "nominal", "scale": arm_colour(lines), "legend": bottom}
    # A bar is read by its length, so it must begin at zero; a line need not.
    scale, axis = {"zero": not is_numeric}, {"format": ",.4~r"}
    y = {"field": "mean", "type": "quantitative", "title": measure.label, "scale": scale, "axis": axis}
    line = {"type": "line", "point": {"filled": True, "size": 40}}
    mark = line if is_numeric else {"type": "bar", "opacity": 0.75}
    rule = {
        "y": {**y, "field": "low"},
        "y2": {"field": "high"},
        "color": colour if is_numeric else {"value": GREY},
    }
    dot = {"type": "point", "filled": True, "size": 16, "opacity": 0.4}
    spreads = [row for row in means if row["n"] > 1 and row["mean"] is not None]
    shared: dict[str, Any] = {"x": x}
    if not is_numeric and len(lines) > 1:
        shared["xOffset"] = {"field": "line", "sort": lines}
    return {
        **PANEL,
        "encoding": shared,
        "layer": [
            _layer(means, mark, {"y": y, "color": colour, "tooltip": _tooltip(measure, x["title"])}),
            _layer(spreads, {"type": "rule"}, rule),
            _layer(seeds, dot, {"y": {**y, "field": "value"}, "color": colour}),
        ],
    }


def _layer(rows: list[Any], mark: dict[str, Any], encoding: dict[str, Any]) -> dict[str, Any]:
    return {"data": {"values": rows}, "mark": mark, "encoding": encoding}


def _tooltip(measure: Measure, x_title: str) -> list[dict[str, str]]:
    return [
        {"field": "line", "title": "arm"},
        {"field": "x", "title": x_title},
        {"field": "mean", "title": measure.label, "format": ".4g"},
        {"field": "sd", "title": "standard deviation", "format": ".2g"},
        {"field": "n", "title": "seeds"},
    ]


def _x_axis(key: str, xs: list[Any]) -> dict[str, Any]:
    """The x axis of all panels with a tick at each value: log2 if numbers span a factor, words in order."""
    if not all(is_number(x) for x in xs):
        words = [str(x) for x in xs]
        axis: dict[str, Any] = {
            "title": key,
            "labelAngle": 0 if sum(len(word) for word in words) < 32 else -30,
        }
        return {
            "field": "x",
            "type": "nominal",
            "sort": words,
            "title": key,
            "scale": {"domain": words},
            "axis": axis,
        }
    ordered = sorted(xs)
    smallest = min((x for x in ordered if x > 0), default=0)
    is_wide = ordered[0] >= 0 and smallest > 0 and ordered[-1] >= 4 * smallest
    scale: dict[str, Any] = {"domain": [ordered[0], ordered[-1]], "zero": False, "nice": False, "padding": 12}
    if is_wide:
        # A log axis has no place for 0, which may be a swept value.
        scale |= {"type": "log", "base": 2} if ordered[0] > 0 else {"type": "symlog"}
    title = f"{key} (log2 scale)" if is_wide else key
    axis = {"values": ordered, "format": "~g", "title": title}
    return {"field": "x", "type": "quantitative", "title": title, "scale": scale, "axis": axis}


def _values(arm: Arm, measure: Measure) -> list[tuple[int | None, float]]:
    return [(trial.seed, value) for trial in arm.finished if (value := measure.of(trial)) is not None]


def _seed_rows(arm: Arm, place: GridPlace, measure: Measure) -> list[dict[str, Any]]:
    return [
        {"x": place.x, "line": place.line, "seed": seed, "value": round(value, 6)}
        for seed, value in _values(arm, measure)
    ]


def _mean_row(arm: Arm, place: GridPlace, measure: Measure) -> dict[str, Any]:
    """The mean over all finished seeds; null, which breaks the line, if a seed lacks the number."""
    values = [value for _, value in _values(arm, measure)]
    middle = mean_of(values) if len(values) == len(arm.finished) else None
    deviation = None if middle is None else sd_of(values)
    row = {"x": place.x, "line": place.line, "n": len(values), "sd": deviation}
    if middle is None:
        return row | {"mean": None}
    reach = deviation or 0.0
    return row | {"mean": round(middle, 6), "low": round(middle - reach, 6), "high": round(middle + reach, 6)}


def _scaled(scale: float, of: Callable[[Trial], float | None]) -> Callable[[Trial], float | None]:
    return lambda trial: None if (value := of(trial)) is None else scale * value


def _summary(name: str, scale: float = 1.0) -> Callable[[Trial], float | None]:
    return _scaled(scale, lambda trial: trial.number(name))


LOOP_MEASURES = (
    Measure("swing (1 = calm)", _summary("selection.swing")),
    Measure("effective sample size (0 to 1)", _summary("selection.ess")),
)
"""Measures that only some runs have: shown if a finished cell has them."""
