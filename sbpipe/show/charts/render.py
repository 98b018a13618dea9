"""From a specification to PNG, SVG and the script that draws it in a page. The one owner of vl-convert, which
brings Vega along.
"""

import json
from types import ModuleType
from typing import Any

from sbpipe.errors import MissingExtra
from sbpipe.show.charts import theme
from sbpipe.show.charts.chart import Chart

VEGALITE = "6.4"
SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"


def whole(chart: Chart, shade: str = "light") -> dict[str, Any]:
    """A specification that stands alone: with schema, title and theme."""
    return {"$schema": SCHEMA, "title": chart.title, "config": theme.config(shade), **_sized(chart.spec)}


def to_svg(chart: Chart, *, shade: str = "light") -> str:
    """The picture as SVG."""
    return str(_library().vegalite_to_svg(json.dumps(whole(chart, shade)), vl_version=VEGALITE))


def to_png(chart: Chart, *, scale: float = 2.0, shade: str = "light") -> bytes:
    """The picture as PNG."""
    return png_of_svg(to_svg(chart, shade=shade), scale=scale)


def png_of_svg(svg: str, *, scale: float = 2.0) -> bytes:
    """An SVG made here as PNG: who wants both draws once."""
    return bytes(_library().svg_to_png(svg, scale=scale))


def javascript() -> str:
    """Vega, Vega-Lite and vega-embed as one script that sets `window.vegaEmbed`; needs no network."""
    snippet = "window.vegaEmbed = vegaEmbed;"
    return str(_library().javascript_bundle(snippet, vl_version=VEGALITE)).replace("</script", "<\\/script")


def _sized(spec: dict[str, Any]) -> dict[str, Any]:
    """`container` is a page's word; a picture has a width of its own."""
    return {key: _sized(value) if isinstance(value, dict) and key == "spec" else 640 if key == "width" and value == "container" else value
            for key, value in spec.items()}  # fmt: skip


def _library() -> ModuleType:
    try:
        import vl_convert
    except ImportError:
        raise MissingExtra("vl-convert-python", "report", "pictures") from None
    return vl_convert
