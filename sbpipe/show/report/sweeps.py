"""What a swept setting does: error, speed, idling, staleness, fidelity and traffic over its values. Knows no
page.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sbpipe.runs.numbers import number
from sbpipe.show.charts import Chart
from sbpipe.show.report.arms import NOTHING, shown, spread
from sbpipe.show.report.grouping import Arm, Group, Target
from sbpipe.show.report.scales import GREY, arm_colour, legend, without_data
from sbpipe.show.report.table import Table
from sbpipe.show.report.trials import Trial

PANEL = {"width": 270, "height": 150}
ALL = "all"
"""The only line of a sweep in which nothing but the x axis tells cells apart."""


@dataclass(frozen=True)
class Measure:
    """One number of a trial, and how it is called."""

    label: str
    of: Callable[[Trial], float | None]


@dataclass(frozen=True)
class Place:
    """Where an arm stands in a sweep: its value of the swept setting, and the line it belongs to."""

    key: str
    x: float | str
    line: str


def place_of(arm: Arm, group: Group) -> Place:
    """The first swept number is the x axis, the other swept settings make the line; without a number, the
    first setting is.
    """
    keys = [key for key in group.swept if key in arm.swept] or list(arm.swept)
    if not keys:
        return Place("arm", arm.name, ALL)
    key = next((key for key in keys if _is_number(arm.swept[key])), keys[0])
    value = arm.swept[key]
    others = [(other, str(arm.swept[other])) for other in keys if other != key]
    parts = [value if other == "mode" else f"{other}={value}" for other, value in others]
    labels = [other.label for other in group.arms]
    if labels.count(arm.label) > 1 and len(set(labels)) > 1:
        parts = [
            arm.label,
            *(part for part, (_, value) in zip(parts, others, strict=True) if value not in arm.label),
        ]
    return Place(key, value if _is_number(value) else str(value), ", ".join(parts) or ALL)


def measures_of(group: Group) -> list[Measure]:
    """What is drawn and listed; the time is to the middle target."""
    measures = [Measure("final test error (%)", _scaled("final_error"))]
    if group.targets:
        measures.append(_time_to(group.targets[len(group.targets) // 2]))
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


def sweep_chart(group: Group) -> Chart:
    """A panel per measure that a finished cell has."""
    places = {arm.name: place_of(arm, group) for arm in group.arms}
    keys = list(dict.fromkeys(place.key for place in places.values()))
    lines = list(dict.fromkeys(place.line for place in places.values()))
    x = _x_axis(" or ".join(keys), list(dict.fromkeys(place.x for place in places.values())))
    panels, absent = [], []
    for measure in measures_of(group):
        seeds = [
            {
                "x": places[arm.name].x,
                "line": places[arm.name].line,
                "seed": trial.seed,
                "value": round(value, 6),
            }
            for arm in group.arms
            for trial in arm.finished
            if (value := measure.of(trial)) is not None
        ]
        means = [_mean_row(arm, places[arm.name], measure) for arm in group.arms]
        if seeds:
            panels.append(_panel(measure, means, seeds, x, lines))
        else:
            absent.append(measure.label)
    title = f"Sweep over {' or '.join(keys)}"
    if not panels:
        return without_data("sweep", title, "No cell has finished.", group.notes)
    absent_note = (f"No finished cell has: {', '.join(absent)}.",) if absent else ()
    meaning = (
        f"What {' or '.join(keys)} does. Each mark is the mean over the seeds that finished, its bar ± one "
        "standard deviation, "
        "pale dots are the seeds. A line is broken where not every seed has the number, as where a target "
        "was not reached by all: a mean "
        "over the lucky ones would flatter."
    )
    if group.targets:
        meaning += f" Targets are multiples of the final error of {group.reference} ({group.reference_is})."
    rows = [{"hconcat": panels[k : k + 2], "spacing": 34} for k in range(0, len(panels), 2)]
    spec = {"vconcat": rows, "spacing": 26}
    return Chart("sweep", title, meaning, spec, (*absent_note, *group.notes))


def sweep_table(group: Group) -> Table:
    """One row per setting: means over the seeds that finished, every target."""
    measures = measures_of(group)
    plain = [
        measures[0],
        *(_time_to(target) for target in group.targets),
        *measures[1 + bool(group.targets) :],
    ]
    keys = list(dict.fromkeys([*group.swept, *(key for arm in group.arms for key in arm.swept)]))
    rows = []
    for arm in group.arms:
        cells = []
        for measure in plain:
            values = [value for trial in arm.finished if (value := measure.of(trial)) is not None]
            is_partial = 0 < len(values) < len(arm.finished)
            cells.append(
                f"{NOTHING} ({len(values)} of {len(arm.finished)})"
                if is_partial
                else shown(*spread(values), digits=4)
            )
        swept = [arm.label, *(str(arm.swept.get(key, NOTHING)) for key in keys)]
        failed = sum(trial.status == "failed" for trial in arm.trials)
        rows.append(
            [
                *swept,
                f"{len(arm.finished)} of {len(arm.trials)}" + (f", {failed} failed" if failed else ""),
                *cells,
            ]
        )
    header = ["arm", *keys, "runs finished", *(measure.label for measure in plain)]
    meaning = (
        "Means of the rows of results.csv over the seeds that finished, ± standard deviation. "
        "In brackets, where not all of them have the number or reached the target: how many did."
    )
    return Table(f"Sweep{': ' + group.name if group.name else ''}", header, rows, meaning)


def _panel(
    measure: Measure, means: list[Any], seeds: list[Any], x: dict[str, Any], lines: list[str]
) -> dict[str, Any]:
    is_numeric = x["type"] == "quantitative"
    bottom = legend("arm", lines) if lines != [ALL] else None
    colour = {"field": "line", "type": "nominal", "scale": arm_colour(lines), "legend": bottom}
    y = {
        "field": "mean",
        "type": "quantitative",
        "title": measure.label,
        "scale": {"zero": not is_numeric},
        "axis": {"format": ",.4~r"},
    }
    of_mean = [
        {"field": "line", "title": "arm"},
        {"field": "x", "title": x["title"]},
        {"field": "mean", "title": measure.label, "format": ".4g"},
        {"field": "sd", "title": "standard deviation", "format": ".2g"},
        {"field": "n", "title": "seeds"},
    ]
    shared: dict[str, Any] = {"x": x}
    if not is_numeric and len(lines) > 1:
        shared["xOffset"] = {"field": "line", "sort": lines}
    mark = (
        {"type": "line", "point": {"filled": True, "size": 40}}
        if is_numeric
        else {"type": "bar", "opacity": 0.75}
    )
    bar = {
        "y": {**y, "field": "low"},
        "y2": {"field": "high"},
        "color": colour if is_numeric else {"value": GREY},
    }
    dots = {"y": {**y, "field": "value"}, "color": colour}
    return {
        **PANEL,
        "encoding": shared,
        "layer": [
            {
                "data": {"values": means},
                "mark": mark,
                "encoding": {"y": y, "color": colour, "tooltip": of_mean},
            },
            {
                "data": {"values": [row for row in means if row["n"] > 1 and row["mean"] is not None]},
                "mark": {"type": "rule"},
                "encoding": bar,
            },
            {
                "data": {"values": seeds},
                "mark": {"type": "point", "filled": True, "size": 16, "opacity": 0.4},
                "encoding": dots,
            },
        ],
    }


def _x_axis(key: str, xs: list[Any]) -> dict[str, Any]:
    """The axis of all panels, with a tick at each value that was tried: log2 for numbers that grow by
    factors, in order for words.
    """
    if not all(_is_number(x) for x in xs):
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
        scale |= {"type": "log", "base": 2} if ordered[0] > 0 else {"type": "symlog"}
    title = f"{key} (log2 scale)" if is_wide else key
    axis = {"values": ordered, "format": "~g", "title": title}
    return {"field": "x", "type": "quantitative", "title": title, "scale": scale, "axis": axis}


def _mean_row(arm: Arm, place: Place, measure: Measure) -> dict[str, Any]:
    """The mean over all finished seeds; null, which breaks the line, if one of them lacks the number."""
    values = [value for trial in arm.finished if (value := measure.of(trial)) is not None]
    middle, deviation = spread(values) if len(values) == len(arm.finished) else (None, None)
    row = {"x": place.x, "line": place.line, "n": len(values), "sd": deviation}
    if middle is None:
        return row | {"mean": None}
    reach = deviation or 0.0
    return row | {"mean": round(middle, 6), "low": round(middle - reach, 6), "high": round(middle + reach, 6)}


def _time_to(target: Target) -> Measure:
    return Measure(f"time to {100 * target.error:.2f} % error (s)", lambda trial: trial.time_to(target.error))


def _summary(name: str, scale: float = 1.0) -> Callable[[Trial], float | None]:
    return lambda trial: None if (value := number(trial.numbers, name)) is None else scale * value


def _scaled(name: str) -> Callable[[Trial], float | None]:
    return lambda trial: None if (value := getattr(trial, name)) is None else 100 * value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


LOOP_MEASURES = (
    Measure("swing (1 = calm)", _summary("selection.swing")),
    Measure("effective sample size (0 to 1)", _summary("selection.ess")),
)
"""What only some runs measure: shown where a finished cell has it."""
