"""The worth of policies: random's error over its budgets, and an arrow from each policy to it. Pure."""

from collections.abc import Mapping
from typing import Any

from sbpipe.runs.study.arm_group import ArmGroup
from sbpipe.runs.study.worth import stated_interval, stated_worth
from sbpipe.show.charts import Chart
from sbpipe.show.report.scales import GREY, arm_colour, error_axis, legend, without_data

_TITLE = "What selection is worth"
_MEANING = (
    "Grey: where random selection ends, its learning rate decayed inside each budget, mean over seeds made "
    "monotone; the band is ± one standard deviation. A dot is where a policy ends after its updates. Its "
    "arrow leads to the updates that random needs for the same error: their ratio is the worth k. An "
    "arrow that reaches no curve stops at the last budget."
)


def worth_chart(group: ArmGroup) -> Chart:
    """Error over updates, of random selection and of the policies."""
    worth = group.analysis["worth"]
    policies = {
        name: of for name, of in worth["policies"].items() if of["error_mean"] is not None and of["updates"]
    }
    if not worth["curve"]:
        return without_data("worth", _TITLE, "No run of random selection has finished.", group.notes)
    points = [_random_row(point) for point in worth["curve"]]
    rows = [_policy_row(name, of, worth["curve"]) for name, of in policies.items()]
    return Chart("worth", _TITLE, _MEANING, _spec(points, rows), group.notes)


def _random_row(point: Mapping[str, Any]) -> dict[str, Any]:
    error, sd = point["error_mean"], point["error_sd"] or 0.0
    return {
        "updates": point["updates"],
        "error": 100 * error,
        "curve": 100 * point["curve"],
        **_spread(error, sd),
        "n": point["n"],
    }


def _spread(error: float, sd: float) -> dict[str, float]:
    """The ends of a spread in %. A log scale has no place for an error of 0."""
    return {"low": 100 * max(error - sd, error / 10), "high": 100 * (error + sd)}


def _policy_row(name: str, of: Mapping[str, Any], curve: list[Mapping[str, Any]]) -> dict[str, Any]:
    said, interval = stated_worth(of), stated_interval(of)
    reached = of["worth"] * of["updates"] if of["worth"] is not None else None
    end = curve[-1]["updates"] if of["beyond"] == "above" else curve[0]["updates"]
    return {
        "policy": f"{name}: k {said}" + (f" ({interval})" if interval else ""),
        "updates": of["updates"],
        "error": 100 * of["error_mean"],
        **_spread(of["error_mean"], of["error_sd"] or 0.0),
        "to": reached if reached is not None else end,
        "is_left": of["beyond"] == "below" or (of["worth"] is not None and of["worth"] < 1.0),
        "n": of["n"],
    }


def _spec(points: list[dict[str, Any]], rows: list[dict[str, Any]]) -> dict[str, Any]:
    names = [row["policy"] for row in rows]
    errors = [value / 100 for row in points for value in (row["low"], row["high"])]
    errors += [row["error"] / 100 for row in rows]
    y = error_axis(errors)
    x = {
        "type": "quantitative",
        "title": "updates (log scale)",
        "scale": {"type": "log", "nice": False, "padding": 12},
        "axis": {
            "format": ",.0f",
            "title": "updates (log scale)",
            "values": [row["updates"] for row in points],
        },
    }
    colour = {
        "field": "policy",
        "type": "nominal",
        "scale": arm_colour(names),
        # A single policy needs a legend too, for its k.
        "legend": legend("policy and worth k", names)
        or {"title": "policy and worth k", "orient": "bottom", "labelLimit": 560},
    }
    at = {"x": {"field": "updates", **x}}
    return {
        "width": "container",
        "height": 320,
        "layer": [*_random_layers(points, at, y), *_policy_layers(rows, at, y, colour)],
    }


def _random_layers(
    points: list[dict[str, Any]], at: dict[str, Any], y: dict[str, Any]
) -> list[dict[str, Any]]:
    tooltip = [
        {"field": "updates", "title": "updates of random", "format": ",.0f"},
        {"field": "error", "title": "test error (%)", "format": ".3f"},
        {"field": "n", "title": "seeds"},
    ]
    data = {"values": points}
    band = {"y": {"field": "low", **y}, "y2": {"field": "high"}}
    return [
        {"data": data, "mark": {"type": "area", "opacity": 0.18, "color": GREY}, "encoding": {**at, **band}},
        {
            "data": data,
            "mark": {"type": "line", "color": GREY},
            "encoding": {**at, "y": {"field": "curve", **y}},
        },
        {
            "data": data,
            "mark": {"type": "point", "filled": True, "size": 30, "color": GREY},
            "encoding": {**at, "y": {"field": "error", **y}, "tooltip": tooltip},
        },
    ]


def _policy_layers(
    rows: list[dict[str, Any]], at: dict[str, Any], y: dict[str, Any], colour: dict[str, Any]
) -> list[dict[str, Any]]:
    data, height = {"values": rows}, {"y": {"field": "error", **y}}
    head = {"condition": {"test": "datum.is_left", "value": "triangle-left"}, "value": "triangle-right"}
    to = {"x": {"field": "to", "type": "quantitative"}}
    tooltip = [
        {"field": "policy", "title": "policy"},
        {"field": "updates", "title": "updates", "format": ",.0f"},
        {"field": "error", "title": "test error (%)", "format": ".3f"},
        {"field": "to", "title": "updates of random for the same error", "format": ",.0f"},
        {"field": "n", "title": "seeds"},
    ]
    return [
        {
            "data": data,
            "mark": {"type": "rule", "strokeDash": [4, 3], "strokeWidth": 1.6},
            "encoding": {**at, "x2": {"field": "to"}, **height, "color": colour},
        },
        {
            "data": data,
            "mark": {"type": "rule", "strokeWidth": 1.2},
            "encoding": {**at, "y": {"field": "low", **y}, "y2": {"field": "high"}, "color": colour},
        },
        {
            "data": data,
            "mark": {"type": "point", "filled": True, "size": 90, "opacity": 1.0},
            "encoding": {**to, **height, "shape": head, "color": colour},
        },
        {
            "data": data,
            "mark": {"type": "point", "filled": True, "size": 90, "opacity": 1.0},
            "encoding": {**at, **height, "color": colour, "tooltip": tooltip},
        },
    ]
