"""Time against error over all arms (the paper's Figure 14): the Pareto-optimal points, and whose they are."""

from dataclasses import dataclass
from typing import Any

from sbpipe.runs.study.arm_group import ArmGroup
from sbpipe.runs.study.pareto import frontier, pareto_shares
from sbpipe.show.charts import Chart
from sbpipe.show.report.scales import GREY, arm_colour, error_axis, legend
from sbpipe.show.report.thinning import thin, thinning_note

MOST = 1500
"""The most beaten points that are drawn."""


@dataclass(frozen=True)
class Tradeoff:
    """One evaluation of one trial: its error and its time."""

    arm: str
    trial: str
    time_s: float
    error: float
    is_end: bool


def tradeoffs_of(group: ArmGroup) -> list[Tradeoff]:
    """Every evaluation of every trial that finished."""
    return [
        Tradeoff(arm.name, trial.name, point.time_s, point.error, is_end=point is trial.curve[-1])
        for arm in group.arms
        for trial in arm.finished
        for point in trial.curve
    ]


def pareto_chart(group: ArmGroup) -> Chart | None:
    """The chart; None without two arms that have a finished curve."""
    points = tradeoffs_of(group)
    if len({point.arm for point in points}) < 2:
        return None
    flags = frontier([(point.time_s, point.error) for point in points])
    optimal = [point for point, is_optimal in zip(points, flags, strict=True) if is_optimal]
    beaten = [point for point, is_optimal in zip(points, flags, strict=True) if not is_optimal]
    # Optimal points are few, and all are drawn; the beaten ones are only background.
    drawn = thin(beaten, MOST)
    strategy_of = {arm: group.strategies.get(arm, arm) for arm in group.names}
    curves = [(strategy_of[arm.name], trial.curve) for arm in group.arms for trial in arm.finished]
    shares = pareto_shares(curves)
    labels = {arm: f"{name} ({100 * shares.get(name, 0.0):.0f} %)" for arm, name in strategy_of.items()}
    rows = [_row(point, labels, True) for point in optimal] + [_row(point, labels, False) for point in drawn]
    return Chart(
        name="pareto",
        title="Time against error: which arm is best for which budget",
        meaning=(
            "Each mark is one evaluation of one run: its test error after so long. Filled marks on the line "
            "are Pareto-optimal: no other one was as early and as accurate. Diamonds are ends of runs; "
            "circles are evaluations in the middle of a run, when its learning rate was still high: a run "
            "planned to end there would have done better."
        ),
        spec=_spec(rows, list(dict.fromkeys(labels.values())), [point.error for point in points]),
        notes=(*thinning_note(len(beaten), len(drawn), "beaten points"), *group.notes),
    )


def _row(point: Tradeoff, labels: dict[str, str], is_optimal: bool) -> dict[str, Any]:
    return {
        "strategy": labels[point.arm],
        "arm": point.arm,
        "run": point.trial,
        "time": round(point.time_s, 3),
        "error": round(100 * point.error, 4),
        "optimal": is_optimal,
        "reading": "end of a run" if point.is_end else "during a run",
    }


def _spec(rows: list[dict[str, Any]], labels: list[str], errors: list[float]) -> dict[str, Any]:
    line = {"type": "line", "interpolate": "step-after", "color": GREY, "strokeWidth": 1.4}
    return {
        "width": "container",
        "height": 340,
        "data": {"values": rows},
        "encoding": {
            "x": {
                "field": "time",
                "type": "quantitative",
                "title": "wall-clock time, start-up included, measuring excluded (s)",
            },
            "y": {"field": "error", **error_axis(errors)},
        },
        "layer": [
            {"transform": [{"filter": "datum.optimal"}], "mark": line},
            {"mark": {"type": "point", "strokeWidth": 1.2}, "encoding": _marks(labels)},
        ],
    }


def _marks(labels: list[str]) -> dict[str, Any]:
    """Colour by strategy, filled and opaque where optimal, a diamond where a run ended."""
    strategy = {"field": "strategy", "type": "nominal", "scale": arm_colour(labels)}
    readings = {"domain": ["during a run", "end of a run"], "range": ["circle", "diamond"]}
    return {
        "color": {**strategy, "legend": legend("strategy (share of Pareto points)", labels)},
        "fill": {"condition": {"test": "datum.optimal", **strategy, "legend": None}, "value": "transparent"},
        "opacity": {"condition": {"test": "datum.optimal", "value": 1.0}, "value": 0.5},
        "size": {"condition": {"test": "datum.optimal", "value": 70}, "value": 26},
        "shape": {
            "field": "reading",
            "type": "nominal",
            "scale": readings,
            "legend": {"title": "reading", "orient": "top"},
        },
        "tooltip": [
            {"field": "strategy", "title": "strategy (share of Pareto points)"},
            {"field": "arm", "title": "arm"},
            {"field": "run", "title": "run"},
            {"field": "time", "title": "time (s)", "format": ".2f"},
            {"field": "error", "title": "test error (%)", "format": ".3f"},
            {"field": "reading", "title": "reading"},
        ],
    }
