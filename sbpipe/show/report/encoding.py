"""The Vega-Lite parts that every chart of a run needs, and two plain shapes: lines and bars. Pure."""

from typing import Any

from sbpipe.show.charts.chart import Spec

WIDE: Spec = {"width": "container", "height": 240}
PERCENT: Spec = {"format": ".0%"}
"""An axis of shares, in percent."""


def quantitative(field: str, title: str, **more: Any) -> Spec:
    """A field that is a quantity."""
    return {"field": field, "type": "quantitative", "title": title, **more}


def nominal(field: str, title: str, **more: Any) -> Spec:
    """A field that is a name."""
    return {"field": field, "type": "nominal", "title": title, **more}


def ordinal(field: str, title: str, **more: Any) -> Spec:
    """A field that has an order but no distance."""
    return {"field": field, "type": "ordinal", "title": title, **more}


def lines(rows: list[Spec], x: Spec, y: Spec, *, mark: Spec | None = None, **encoding: Spec) -> Spec:
    """A line for each value of the field in `encoding`'s colour or detail; without either, one line."""
    drawn = {"type": "line", "tooltip": True, **(mark or {})}
    return {**WIDE, "data": {"values": rows}, "mark": drawn, "encoding": {"x": x, "y": y, **encoding}}


def bars(rows: list[Spec], x: Spec, y: Spec, tooltip: list[Spec]) -> Spec:
    """A bar for each row, in the order of the rows."""
    # Otherwise Vega-Lite sorts alphabetically: 10 would come before 2.
    places = {**x, "sort": None, "axis": {"labelAngle": 0}}
    encoding = {"x": places, "y": y, "tooltip": tooltip}
    return {**WIDE, "data": {"values": rows}, "mark": {"type": "bar"}, "encoding": encoding}


def with_band(line: Spec, low: str, high: str) -> Spec:
    """A line over the band between two other fields of its rows."""
    y = line["encoding"]["y"]
    edges = {"y": {**y, "field": low}, "y2": {"field": high}}
    band = {"mark": {"type": "area", "opacity": 0.25}, "encoding": edges}
    shared = {name: line[name] for name in ("width", "height", "data")}
    x = {"x": line["encoding"]["x"]}
    return {**shared, "encoding": x, "layer": [band, {"mark": line["mark"], "encoding": {"y": y}}]}
