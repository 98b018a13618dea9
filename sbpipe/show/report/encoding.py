"""The few words of Vega-Lite that every chart of a run says. Plain data."""

from collections.abc import Sequence
from typing import Any

from sbpipe.show.charts.chart import Spec

WIDE: Spec = {"width": "container", "height": 260}
PROGRESS_SCALE: Spec = {"scheme": "viridis", "domain": [0, 100]}
"""Early is dark violet, late is yellow, in every picture that compares moments of one run."""


def number(field: str, title: str, **more: Any) -> Spec:
    """A field that is a quantity."""
    return {"field": field, "type": "quantitative", "title": title, **more}


def word(field: str, title: str, **more: Any) -> Spec:
    """A field that is a name."""
    return {"field": field, "type": "nominal", "title": title, **more}


def rank(field: str, title: str, **more: Any) -> Spec:
    """A field that has an order but no distance."""
    return {"field": field, "type": "ordinal", "title": title, **more}


def step_axis() -> Spec:
    """The steps of a run, from its first to its last."""
    return number("step", "step", scale={"nice": False, "zero": False})


def percent_axis(**more: Any) -> Spec:
    """An axis of shares, said in percent."""
    return {"format": ".0%", **more}


def progress_colour() -> Spec:
    """Colour by how far the run was."""
    return number("progress", "progress (%)", scale=PROGRESS_SCALE)


def progress_of(events: Sequence[dict[str, Any]], last: float, key: str = "candidates") -> list[float]:
    """How far the run was at each event, in percent of the last number of candidates."""
    return [round(100.0 * (event.get(key) or 0) / max(1.0, last), 2) for event in events]
