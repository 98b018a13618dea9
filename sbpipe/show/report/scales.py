"""Shared by charts of several arms: colours, legends, the error axis, target lines. Knows no run."""

from typing import Any

from sbpipe.runs.study.arm_group import ArmGroup
from sbpipe.show.charts import Chart
from sbpipe.show.charts.theme import CATEGORY

LOG_FROM = 8.0
"""Errors that span more than this factor are drawn on a log scale."""
GREY = "#7a8794"
DASHES = ([9, 3], [4, 3], [1, 3], [9, 3, 1, 3])
"""The dashes of target lines, in the order of the targets."""


def arm_colour(names: list[str]) -> dict[str, Any]:
    """The colour scale of arms, the same in every chart that lists them in this order."""
    return {"domain": names, **({"range": CATEGORY} if len(names) <= len(CATEGORY) else {"scheme": "turbo"})}


def legend(title: str, names: list[str], orient: str = "bottom") -> dict[str, Any] | None:
    """A legend below (or above) the chart, with as many columns as fit; none for a single name."""
    if len(names) == 1:
        return None
    longest = max((len(name) for name in names), default=1)
    return {
        "title": title,
        "orient": orient,
        "columns": max(1, min(4, 84 // (longest + 4))),
        "labelLimit": 560,
        "titleLimit": 560,
        # By default Vega drops entries after the thirtieth, and draws symbols as pale as the bands.
        "symbolLimit": 0,
        "symbolOpacity": 1,
    }


def error_axis(errors: list[float]) -> dict[str, Any]:
    """Type, title and scale of an error axis in %: a log scale if errors span much."""
    is_log = min(errors) > 0 and max(errors) / min(errors) > LOG_FROM
    scale = {"type": "log", "nice": False, "padding": 6} if is_log else {"zero": False, "nice": True}
    title = "test error (%, log scale)" if is_log else "test error (%)"
    return {
        "type": "quantitative",
        "title": title,
        "scale": scale,
        "axis": {"format": ".4~f", "title": title},
    }


def target_layers(group: ArmGroup) -> list[dict[str, Any]]:
    """A horizontal line per target, each with its own dashes."""
    # Labels beside the lines would collide: targets may be close.
    rows = [
        {"target": 100 * target.error, "label": f"{target.factor:g}× = {100 * target.error:.2f} %"}
        for target in group.targets
    ]
    labels = [str(row["label"]) for row in rows]
    scale = {"domain": labels, "range": [DASHES[index % len(DASHES)] for index in range(len(labels))]}
    encoding = {
        "y": {"field": "target", "type": "quantitative"},
        "strokeDash": {
            "field": "label",
            "type": "nominal",
            "scale": scale,
            "legend": legend("target error", labels, "top"),
        },
        "tooltip": [{"field": "label", "title": "target error"}],
    }
    return (
        [{"data": {"values": rows}, "mark": {"type": "rule", "color": GREY}, "encoding": encoding}]
        if rows
        else []
    )


def without_data(name: str, title: str, why: str, notes: tuple[str, ...]) -> Chart:
    """A chart without data: it gives the reason, and draws nothing."""
    return Chart(name, title, why, {}, notes)
