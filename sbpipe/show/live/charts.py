"""The live page's pictures as Vega-Lite specifications whose data has a name and comes later. Pure; knows
neither runs nor files.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sbpipe.show.charts import theme
from sbpipe.show.charts.chart import Spec
from sbpipe.show.terminal import LOOP

DATA = "rows"
"""The name under which a page puts the rows in."""
AXES = {"time": "time since the first step (s)", "step": "steps", "candidates": "candidates considered"}
"""What curves can be drawn against."""
MAX_SHOWN = len(theme.CATEGORY)
FIT = {"type": "fit-x", "contains": "padding", "resize": True}
"""`resize`: axes are measured anew when rows come, for their labels grow."""


@dataclass(frozen=True)
class Curves:
    """One picture of curves: which columns of which series it draws, and how its axis is called."""

    name: str
    title: str
    meaning: str
    series: str
    measures: Mapping[str, str]
    """Column to what the legend calls it."""
    axis: str
    format: str = ",~r"
    has_points: bool = False
    is_whole: bool = False
    """Counts things: ticks between whole numbers stay bare."""
    has_zero: bool = True
    is_log: bool = False
    domain: tuple[float, ...] = field(default=())
    """Ends of the axis, where they are known beforehand."""
    level: float | None = None
    """Where a line says what is usual."""
    is_optional: bool = False
    """Not every run has it: no card without rows."""


_SWINGS = {"swing": "train batches", "prediction_swing": "predictions"}
_STEERING = ("strength", "ess", "guard")
_DASHES = ([1, 0], [5, 3], [1, 3])
CURVES = (
    Curves(
        "test-error", "Test error", "Share of unseen test examples classified wrongly. Lower is better.",
        "evals", {"error": "test error"}, "test error (%)", "~%", has_points=True,
    ),
    Curves(
        "loss", "Training loss", "Loss of the examples trained on, mean of a batch. Selection keeps the hard "
                                 "ones, so it lies above the test loss.",
        "steps", {"loss": "training loss"}, "loss (mean of a batch)",
    ),
    Curves(
        "idle", "Waiting", "Share of the time so far that a role had nothing to do. High on one side: the "
                           "other side limits the run.",
        "progress", {"idle": "trainer", "selector_idle": "selector"}, "idle time (%)", "~%", domain=(0, 1),
    ),
    Curves(
        "staleness", "Staleness", "Steps the weights had moved on between scoring an example and training on "
                                  "it.",
        "steps", {"staleness_mean": "mean", "staleness_max": "largest"}, "staleness (steps)",
    ),
    Curves(
        "fidelity", "Fidelity of scores", "Agreement of the selector's scores with fresh losses at training. "
                                          "1: the same order; 0: no relation.",
        "steps", {"spearman": "Spearman"}, "rank correlation (−1 to 1)", ".1f", has_zero=False,
    ),
    Curves(
        "swing", "Swing of the loop", " ".join(LOOP[name][1] for name in _SWINGS),
        "steps", _SWINGS, "variance (1 = chance)", level=1.0, is_log=True, is_optional=True,
    ),
    Curves(
        "strength", "Strength of the choice", " ".join((f"{LOOP[name][0].capitalize()}: "
                                                       f"{LOOP[name][1]}") for name in _STEERING),
        "steps", {name: LOOP[name][0] for name in _STEERING}, "share (0 to 1)", ".1f", domain=(0, 1), is_optional=True,
    ),
    Curves(
        "keep-rate", "Keep rate", "Share of the candidates considered so far that were kept for training.",
        "progress", {"keep_rate": "kept"}, "candidates kept (%)", "~%", has_zero=False,
    ),
    Curves(
        "queue", "Queue", "Kept examples that wait to be trained. Empty: the trainer starves; long: what it "
                          "trains on is stale.",
        "progress", {"queue": "queue"}, "waiting (examples)",
    ),
    Curves(
        "rate", "Throughput", "Candidates considered per second of training, on average so far.",
        "progress", {"candidates_per_s": "rate"}, "rate (candidates/s)",
    ),
    Curves(
        "selectors", "Selectors", "Selectors that were ready to score. A drop: one was lost or has left.",
        "progress", {"selectors": "ready"}, "ready (selectors)", is_whole=True,
    ),
)  # fmt: skip


def config(shade: str) -> dict[str, Any]:
    """The theme on this page: its cards are the paper, and of two legends one stands under the other, or they
    would not fit.
    """
    plain = theme.config(shade, background=False)
    return plain | {
        "legend": plain["legend"]
        | {"layout": {"bottom": {"direction": "vertical", "anchor": "start", "margin": 4}}}
    }


def pictures(
    names: Sequence[str], colours: Sequence[str], *, x: str = "time", is_narrow: bool = False
) -> list[dict[str, Any]]:
    """Every picture of the page for some runs, each with its colour: what it is called, what it draws, and
    how.
    """
    return [
        {
            "name": curves.name,
            "title": curves.title,
            "meaning": curves.meaning,
            "series": curves.series,
            "measures": curves.measures,
            "optional": curves.is_optional,
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
    mark = {"type": "line", "clip": True, "point": {"size": 22} if curves.has_points else False}
    drawn = {"mark": mark} if curves.level is None else {"layer": [{"mark": mark}, _level(curves)]}
    return {
        "data": {"name": DATA},
        "width": "container",
        "height": 200,
        "autosize": FIT,
        **drawn,
        "encoding": encoding,
    }


def _level(curves: Curves) -> Spec:
    """A line across the picture; of what the curves encode it has only the height."""
    apart = dict.fromkeys(("x", "color", "strokeDash", "tooltip"))
    mark = {"type": "rule", "color": "#7a8794", "strokeDash": [2, 3], "strokeWidth": 1.4}
    return {
        "data": {"values": [{"value": curves.level}]},
        "mark": mark,
        "encoding": {**apart, "y": _y(curves)},
    }


def _x(x: str) -> Spec:
    axis = {"format": "~s" if x == "candidates" else ",~r", "tickCount": 5, "grid": False}
    return {"field": x, "type": "quantitative", "title": AXES[x], "axis": axis, "scale": {"zero": True}}


def _y(curves: Curves) -> Spec:
    axis = {"format": curves.format, "tickCount": 5} | (
        {"labelExpr": "datum.value % 1 ? '' : datum.label"} if curves.is_whole else {}
    )
    scale: dict[str, Any] = {"domain": list(curves.domain)} if curves.domain else {"zero": curves.has_zero}
    scale |= {"type": "symlog", "constant": 1} if curves.is_log else {}
    return {"field": "value", "type": "quantitative", "title": curves.axis, "axis": axis, "scale": scale}


def _tooltip(curves: Curves) -> list[Spec]:
    """What stands at the pointer: which line, its value, and where on every axis."""
    return [
        {"field": "run", "title": "run"},
        {"field": "measure", "title": "measure"},
        {"field": "value", "title": curves.axis, "format": ".2%" if "%" in curves.format else ".4~g"},
        *({"field": name, "title": title, "format": ",.5~g"} for name, title in AXES.items()),
    ]


def timeline_spec(shade: str = "light", *, is_narrow: bool = False) -> Spec:
    """A lane per role, a bar per stage; rows are {lane, stage, begin, end, step}, times in seconds."""
    stages = theme.STAGE_COLOURS | {"idle": theme.FAINT[shade]}  # doing nothing must not glare on dark paper
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
                "legend": {"orient": "bottom", "columns": 3 if is_narrow else 9, "symbolType": "square"},
            },
            "tooltip": [
                {"field": "lane", "title": "who"},
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
        "overlap. "
        "Red or amber in a lane: that role waits; grey: a selector has nothing to do; sand: the test error "
        "is measured."
    ),
}
