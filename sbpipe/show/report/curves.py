"""Test error over time and over examples trained: a line per arm with its band of seeds. Knows no page."""

from bisect import bisect_right
from dataclasses import dataclass
from typing import Any

from sbpipe.runs.study.arm import Arm
from sbpipe.runs.study.arm_group import ArmGroup
from sbpipe.runs.study.trial import Trial
from sbpipe.show.charts import Chart
from sbpipe.show.report.scales import arm_colour, error_axis, legend, target_layers, without_data
from sbpipe.show.report.thinning import thin

MOST = 150
"""The most places at which a curve is drawn."""
FEW = 30
"""Up to so many evaluations of a single run are marked."""
Series = list[tuple[float, float]]


@dataclass(frozen=True)
class Axis:
    """The x axis of an error curve."""

    field: str
    name: str
    title: str
    label: str


TIME = Axis(
    "time_s",
    "error-over-time",
    "Test error over time",
    "wall-clock time, start-up included, measuring excluded (s)",
)
TRAINED = Axis(
    "trained", "error-over-trained", "Test error over examples trained", "examples trained (backpropagated)"
)


def band(curves: list[Series]) -> list[dict[str, float]]:
    """Mean, lowest and highest of finished runs' curves, wherever one was measured, once all have begun.

    Between two evaluations a curve is interpolated linearly. After its last one it stays constant, because a
    run that has ended keeps its model.
    """
    if not curves or any(not curve for curve in curves):
        return []
    # Earlier, the mean would jump whenever one more curve begins.
    begin = max(curve[0][0] for curve in curves)
    places = sorted({x for curve in curves for x, _ in curve if begin <= x})
    rows = []
    for x in thin(places, MOST):
        values = [_read(curve, x) for curve in curves]
        rows.append({"x": x, "mean": sum(values) / len(values), "low": min(values), "high": max(values)})
    return rows


def curve_charts(group: ArmGroup) -> list[Chart]:
    """Error over time and, where arms are compared, over examples trained: the same on any machine."""
    has_curves = any(trial.curve for arm in group.arms for trial in arm.trials)
    return [error_over_time(group), *([_chart(group, TRAINED)] if has_curves and len(group.arms) > 1 else [])]


def error_over_time(group: ArmGroup) -> Chart:
    """The chart; with too few points for a line, it says so instead."""
    points = [(trial, point) for arm in group.arms for trial in arm.trials for point in trial.curve]
    if not points:
        return without_data(TIME.name, TIME.title, "No test error has been measured.", group.notes)
    if len(points) == 1:
        trial, point = points[0]
        said = f"Measured once: {trial.name} had {100 * point.error:.2f} % after {point.time_s:.1f} s."
        return without_data(TIME.name, TIME.title, said, group.notes)
    return _chart(group, TIME)


def _chart(group: ArmGroup, axis: Axis) -> Chart:
    means = [row for arm in group.arms for row in _mean_rows(arm, axis)]
    lines = [row for arm in group.arms for row in _run_rows(arm, axis)]
    ends = [row for arm in group.arms for row in _end_rows(arm, axis)]
    errors = [point.error for arm in group.arms for trial in arm.trials for point in trial.curve]
    spec = _spec(group, axis, means, lines, ends, errors)
    return Chart(axis.name, axis.title, _meaning(group, has_means=bool(means)), spec, group.notes)


def _meaning(group: ArmGroup, *, has_means: bool) -> str:
    """How to read the parts that are drawn."""
    said = ["Lower and further left is better."]
    if has_means:
        said.append(
            "A bold line is the mean over an arm's finished runs, its band reaches from their lowest to "
            "their highest; thin lines are runs. Between two evaluations a run is taken as straight, after "
            "its end as staying there; a mean begins where all runs were measured."
        )
    trials = [trial for arm in group.arms for trial in arm.trials]
    if len(trials) > 1:
        said.append("Dots are ends of runs.")
    if not all(trial.is_finished for trial in trials):
        said.append("Dashed runs did not finish.")
    if group.targets:
        said.append(
            f"Horizontal lines are multiples of the final error of {group.reference} ({group.reference_is})."
        )
    return " ".join(said)


def _mean_rows(arm: Arm, axis: Axis) -> list[dict[str, Any]]:
    """The mean curve of an arm with several finished runs."""
    curves = [_series(trial, axis) for trial in arm.finished if trial.curve]
    rows = band(curves) if len(curves) > 1 else []
    return [{"arm": arm.name, "n": len(curves), "x": row["x"], **_in_percent(row)} for row in rows]


def _run_rows(arm: Arm, axis: Axis) -> list[dict[str, Any]]:
    """Every run's own curve: thin if the arm's mean is drawn too."""
    is_averaged = len([trial for trial in arm.finished if trial.curve]) > 1
    return [
        {
            "arm": arm.name,
            "run": trial.name,
            "finished": trial.is_finished,
            "thin": is_averaged,
            "x": x,
            "error": round(100 * error, 4),
        }
        for trial in arm.trials
        for x, error in thin(_series(trial, axis), MOST)
    ]


def _end_rows(arm: Arm, axis: Axis) -> list[dict[str, Any]]:
    return [
        {
            "arm": arm.name,
            "run": trial.name,
            "x": getattr(trial.curve[-1], axis.field),
            "error": round(100 * trial.curve[-1].error, 4),
        }
        for trial in arm.finished
        if trial.curve
    ]


def _spec(
    group: ArmGroup, axis: Axis, means: list[Any], lines: list[Any], ends: list[Any], errors: list[float]
) -> dict[str, Any]:
    names, y = group.names, error_axis(errors)
    colour = {"field": "arm", "type": "nominal", "scale": arm_colour(names), "legend": legend("arm", names)}
    x = {"field": "x", "type": "quantitative", "title": axis.label, "scale": {"zero": True}}
    shared = {"x": x, "y": {"field": "error", **y}, "color": colour}
    where = {"field": "x", "title": axis.label, "format": ",.2f" if axis.field == "time_s" else ",.0f"}
    arm, run = {"field": "arm", "title": "arm"}, {"field": "run", "title": "run"}
    of_run = [arm, run, where, {"field": "error", "title": "test error (%)", "format": ".3f"}]
    dash = {"condition": {"test": "datum.finished", "value": [1, 0]}, "value": [5, 3]}
    # A single run's few evaluations are marked. More marks would hide the lines: only the tooltip finds them.
    is_marked = len(lines) <= FEW and len({row["run"] for row in lines}) == 1
    curve = {"type": "line", "point": True if is_marked else "transparent"}
    alone, averaged = ([row for row in lines if row["thin"] is is_thin] for is_thin in (False, True))
    of_one = {**shared, "detail": {"field": "run"}, "strokeDash": dash, "tooltip": of_run}
    layers = [
        _layer(
            means,
            # Many bands on top of each other must not hide the lines.
            {"type": "area", "opacity": 0.18 if len(names) <= 4 else 0.08},
            {**shared, "y": {"field": "low", **y}, "y2": {"field": "high"}},
        ),
        _layer(averaged, {"type": "line", "strokeWidth": 0.8, "opacity": 0.55}, of_one),
        _layer(alone, curve, of_one),
        _layer(
            means,
            {**curve, "strokeWidth": 2.4},
            {**shared, "y": {"field": "mean", **y}, "tooltip": [arm, where, *_of_band()]},
        ),
        _layer(
            ends, {"type": "point", "filled": True, "size": 34, "opacity": 0.9}, {**shared, "tooltip": of_run}
        ),
    ]
    drawn = [layer for layer in layers if layer["data"]["values"]]
    return {"width": "container", "height": 300, "layer": [*target_layers(group), *drawn]}


def _layer(rows: list[Any], mark: dict[str, Any], encoding: dict[str, Any]) -> dict[str, Any]:
    return {"data": {"values": rows}, "mark": mark, "encoding": encoding}


def _of_band() -> list[dict[str, Any]]:
    return [
        {"field": "mean", "title": "mean error (%)", "format": ".3f"},
        {"field": "low", "title": "lowest (%)", "format": ".3f"},
        {"field": "high", "title": "highest (%)", "format": ".3f"},
        {"field": "n", "title": "runs"},
    ]


def _series(trial: Trial, axis: Axis) -> Series:
    """A trial's curve with ascending x; of two evaluations at the same x the later one counts."""
    return sorted({getattr(point, axis.field): point.error for point in trial.curve}.items())


def _read(curve: Series, x: float) -> float:
    """A curve's value at an x that is not before its beginning."""
    after = bisect_right(curve, x, key=lambda point: point[0])
    x_before, y_before = curve[after - 1]
    if after == len(curve) or x == x_before:
        return y_before
    x_after, y_after = curve[after]
    return y_before + (y_after - y_before) * (x - x_before) / (x_after - x_before)


def _in_percent(row: dict[str, float]) -> dict[str, float]:
    return {name: round(100 * row[name], 4) for name in ("mean", "low", "high")}
