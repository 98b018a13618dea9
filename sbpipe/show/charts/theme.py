"""Colours and fonts of every chart, light and dark, distinct for the colour-blind too. Plain data."""

from typing import Any

CATEGORY = [
    "#3b76c4",
    "#e0802f",
    "#2a9d76",
    "#c2477f",
    "#8a6fd1",
    "#b59a1f",
    "#5aa7c9",
    "#a0522d",
    "#7a8794",
    "#d1495b",
]
"""For arms, runs and seeds, in order."""
# The order is that of the report's legend.
STAGE_COLOURS = {
    "forward": "#3b76c4",
    "backward": "#274f86",
    "weigh": "#7c93d6",
    "optimizer": "#5aa7c9",
    "augment": "#7fc1b4",
    "steer": "#8fb3d9",
    "publish": "#c2477f",
    "publish_fast": "#d98bb0",
    "receive": "#b59a1f",
    "view": "#9db8a5",
    "log": "#7a8794",
    "settle": "#a9b2bb",
    "between": "#c9b7d6",
    "evaluate": "#d8c7a3",
    "checkpoint": "#8d7b68",
    "wait": "#d1495b",
    "wait_view": "#e58a95",
    "score": "#2a9d76",
    "select": "#57b894",
    "tune": "#a3d9c3",
    "send": "#e0802f",
    "apply": "#8a6fd1",
    "apply_fast": "#b3a1e3",
    "refresh": "#6b4fb8",
    "await": "#e3a857",
    "transfer": "#c99a6b",
    "transfer_fast": "#dfc3a4",
    "idle": "#d9dde2",
}
"""One colour per stage in every picture: blue trains, green selects, purple sends weights, red waits."""
FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"
INK = {"light": "#1f2933", "dark": "#e6e9ec"}
FAINT = {"light": "#d8dde3", "dark": "#3a424b"}
PAPER = {"light": "#ffffff", "dark": "#14181c"}


def config(shade: str = "light", *, background: bool = True) -> dict[str, Any]:
    """The Vega `config` object of one shade, `light` or `dark`."""
    ink, faint = INK[shade], FAINT[shade]
    words = {"labelColor": ink, "titleColor": ink, "titleFontSize": 12, "titleFontWeight": "normal"}
    lines = {"gridColor": faint, "domainColor": faint, "tickColor": faint, "gridOpacity": 0.6}
    return {
        "background": PAPER[shade] if background else "transparent",
        "font": FONT,
        "axis": {**words, **lines, "labelFontSize": 11, "labelOverlap": True},
        "legend": {**words, "labelFontSize": 11, "labelLimit": 260},
        "header": {"labelColor": ink, "titleColor": ink, "labelFontSize": 12},
        "title": {"color": ink, "subtitleColor": ink, "anchor": "start", "fontSize": 13},
        "text": {"color": ink},
        "view": {"stroke": None},
        "range": {"category": CATEGORY},
        "mark": {"color": CATEGORY[0]},
        "line": {"strokeWidth": 1.8},
    }
