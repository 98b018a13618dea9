"""Renders a specification as PNG or SVG, and gives pages the drawing script. The only user of vl-convert."""

import json
from types import ModuleType
from typing import Any

from sbpipe.errors import MissingExtra
from sbpipe.show.charts import theme
from sbpipe.show.charts.chart import Chart

# Pinned, so that pictures and page are drawn by the same version of the library.
VEGALITE = "6.4"
PICTURE_WIDTH = 640
SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"


def whole(chart: Chart, shade: str = "light") -> dict[str, Any]:
    """A complete specification: with schema, title and theme."""
    return {"$schema": SCHEMA, "title": chart.title, "config": theme.config(shade), **_sized(chart.spec)}


def to_svg(chart: Chart, *, shade: str = "light") -> str:
    """The picture as SVG."""
    return str(_library().vegalite_to_svg(json.dumps(whole(chart, shade)), vl_version=VEGALITE))


def to_png(chart: Chart, *, scale: float = 2.0, shade: str = "light") -> bytes:
    """The picture as PNG."""
    return png_of_svg(to_svg(chart, shade=shade), scale=scale)


def png_of_svg(svg: str, *, scale: float = 2.0) -> bytes:
    """A PNG of an SVG made here, so that a chart wanted as both is drawn once."""
    return bytes(_library().svg_to_png(svg, scale=scale))


def javascript() -> str:
    """Vega, Vega-Lite and vega-embed as one script that sets `window.vegaEmbed`; needs no network."""
    # It is put inside a page's <script>, so its text must not contain that tag's end.
    snippet = "window.vegaEmbed = vegaEmbed;"
    return str(_library().javascript_bundle(snippet, vl_version=VEGALITE)).replace("</script", "<\\/script")


def _sized(spec: dict[str, Any]) -> dict[str, Any]:
    """A specification for a picture, which has no container to take its width from."""
    sized: dict[str, Any] = {
        key: PICTURE_WIDTH if value == "container" else value for key, value in spec.items()
    }
    # A chart of panels has the width of each panel inside `spec`.
    return {**sized, "spec": _sized(sized["spec"])} if isinstance(sized.get("spec"), dict) else sized


def _library() -> ModuleType:
    try:
        import vl_convert
    except ImportError:
        raise MissingExtra("vl-convert-python", "report", "pictures") from None
    return vl_convert
