"""The live page's pictures as Vega-Lite specifications without rows. Pure; knows no run."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sbpipe.runs.names import LOOP_STAGES, SELECTOR_STAGES, STAGE_LABELS
from sbpipe.show.charts import theme
from sbpipe.show.charts.chart import Spec

DATA = "rows"
"""The name of the data set that a page fills with rows."""
AXES = {"time": "time since the first step (s)", "step": "steps", "candidates": "candidates considered"}
"""The x axes of curves."""
MAX_SHOWN = len(theme.CATEGORY)
FIT = {"type": "fit-x", "contains": "padding", "resize": True}
"""`resize`: new rows may have longer labels, so axes are measured again."""


class Curves(NamedTuple):
    """One picture of curves: the columns of a series that it draws, and the title of its axis."""

    name: str
    title: str
    meaning: str
    series: str
    measures: Mapping[str, str]
    """Column to its name in the legend."""
    axis: str
    format: str = ",~r"
    domain: tuple[float, ...] = ()
    """Ends of the axis, if they are known beforehand."""
    has_points: bool = False


_DASHES = ([1, 0], [5, 3])
CURVES = (
    Curves(
        "test-error",
        "Test error",
        "Share of unseen test examples classified wrongly. Lower is better.",
        "evals",
        {"error": "test error"},
        "test error (%)",
        "~%",
        has_points=True,
    ),
    Curves(
        "loss",
        "Training loss",
        "Loss of the examples trained on, mean of a batch. Selection keeps hard ones: it lies above the test "
        "loss.",
        "steps",
        {"loss": "training loss"},
        "loss (mean of a batch)",
    ),
    Curves(
        "idle",
        "Idle time",
        "Share of the time so far that a role had nothing to do. High for one: the other limits the run.",
        "progress",
        {"idle": "trainer", "selector_idle": "selector"},
        "idle time (%)",
        "~%",
        domain=(0, 1),
    ),
    Curves(
        "throughput",
        "Throughput",
        "Candidates considered per second of training, on average so far.",
        "progress",
        {"candidates_per_s": "throughput"},
        "rate (candidates/s)",
    ),
)
"""The numbers a user acts on; all others are in the report."""


def config(shade: str) -> dict[str, Any]:
    """The theme on this page: no background, since cards have one, and legends below each other, to fit."""
    plain = theme.config(shade, background=False)
    return plain | {
        "legend": plain["legend"]
        | {"layout": {"bottom": {"direction": "vertical", "anchor": "start", "margin": 4}}}
    }


def pictures(
    names: Sequence[str], colours: Sequence[str], *, x: str = "time", is_narrow: bool = False
) -> list[dict[str, Any]]:
    """Every picture of the page for some runs and their colours: name, contents and specification."""
    return [
        {
            "name": curves.name,
            "title": curves.title,
            "meaning": curves.meaning,
            "series": curves.series,
            "measures": curves.measures,
            "spec": curves_spec(curves, names, colours, x=x, is_narrow=is_narrow),
        }
        for curves in CURVES
    ]


def curves_spec(
    curves: Curves, names: Sequence[str], colours: Sequence[str], *, x: str, is_narrow: bool
) -> Spec:
    """A line per run and measure; rows are {run, measure, value, time, step, candidates}."""
    look = {"symbolType": "stroke", "symbolStrokeWidth": 3, "titleOrient": "left"}
    legend = {
        "orient": "bottom",
        "columns": 1 if is_narrow else 2,
        "labelLimit": 220 if is_narrow else 140,
        **look,
    }
    colour_scale = {"domain": list(names), "range": list(colours)}
    encoding: dict[str, Any] = {
        "x": _x(x),
        "y": _y(curves),
        "color": {"field": "run", "type": "nominal", "title": "run", "scale": colour_scale, "legend": legend},
        "tooltip": _tooltip(curves),
    }
    if len(curves.measures) > 1:
        encoding["strokeDash"] = {
            "field": "measure",
            "title": "measure",
            "scale": {
                "domain": list(curves.measures.values()),
                "range": list(_DASHES[: len(curves.measures)]),
            },
            "legend": {**legend, "symbolStrokeColor": "gray"},
        }
    return {
        "data": {"name": DATA},
        "width": "container",
        "height": 200,
        "autosize": FIT,
        "mark": {"type": "line", "clip": True, "point": {"size": 22} if curves.has_points else False},
        "encoding": encoding,
    }


def _x(x: str) -> Spec:
    axis = {"format": "~s" if x == "candidates" else ",~r", "tickCount": 5, "grid": False}
    return {"field": x, "type": "quantitative", "title": AXES[x], "axis": axis, "scale": {"zero": True}}


def _y(curves: Curves) -> Spec:
    axis = {"format": curves.format, "tickCount": 5}
    scale = {"domain": list(curves.domain)} if curves.domain else {"zero": True}
    return {"field": "value", "type": "quantitative", "title": curves.axis, "axis": axis, "scale": scale}


def _tooltip(curves: Curves) -> list[Spec]:
    """The tooltip: which line, its value, and its place on every axis."""
    return [
        {"field": "run", "title": "run"},
        {"field": "measure", "title": "measure"},
        {"field": "value", "title": curves.axis, "format": ".2%" if "%" in curves.format else ".4~g"},
        *({"field": name, "title": title, "format": ",.5~g"} for name, title in AXES.items()),
    ]


def timeline_spec(shade: str = "light", *, is_narrow: bool = False) -> Spec:
    """A lane per role, a bar per stage; rows are {lane, stage, begin, end, step}, times in seconds."""
    colours = theme.STAGE_COLOURS | {"idle": theme.FAINT[shade]}  # idle time must not glare on a dark page
    stages = {STAGE_LABELS[stage]: colours[stage] for stage in (*LOOP_STAGES, *SELECTOR_STAGES)}
    seconds = {"type": "quantitative", "title": "time (s; 0 = newest)"}
    return {
        "data": {"name": DATA},
        "width": "container",
        "height": 130,
        "autosize": FIT,
        "mark": {"type": "bar", "height": {"band": 0.86}, "clip": True},
        "encoding": {
            "y": {
                "field": "lane",
                "type": "nominal",
                "title": None,
                "sort": None,
                "axis": {"labelLimit": 96 if is_narrow else 160},
            },
            "x": {
                "field": "begin",
                **seconds,
                "axis": {"tickCount": 6, "format": "~g"},
                "scale": {"nice": False},
            },
            "x2": {"field": "end"},
            "color": {
                "field": "stage",
                "type": "nominal",
                "title": "stage",
                "scale": {"domain": list(stages), "range": list(stages.values())},
                "legend": {"orient": "bottom", "columns": 2 if is_narrow else 8, "symbolType": "square"},
            },
            "tooltip": [
                {"field": "lane", "title": "role"},
                {"field": "stage", "title": "stage"},
                {"field": "step", "title": "step"},
                {"field": "milliseconds", "title": "lasted (ms)", "format": ".3~g"},
            ],
        },
        "transform": [{"calculate": "1000 * (datum.end - datum.begin)", "as": "milliseconds"}],
    }


TIMELINE = {
    "name": "timeline",
    "title": "The last steps of both roles",
    "meaning": (
        "Each bar is a stage, each lane a role. Blue over green at the same time: training and selecting "
        "overlap. Red or amber: that role waits; grey: a selector has nothing to do; sand: the test error is "
        "measured."
    ),
}
