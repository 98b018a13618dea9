"""A finding of the verdict, and how it writes numbers. Pure."""

from collections.abc import Mapping
from typing import Any, NamedTuple

Numbers = Mapping[str, Any]
"""A summary; a missing number is unknown."""

WAITED = 0.02
"""Share of the loop's time, or of the trained examples, that is too small to report."""


class Finding(NamedTuple):
    """Its sentences, its part of the headline, and what to do about it ("" = nothing)."""

    text: str
    short: str
    knob: str = ""


def percent(share: float | None) -> str:
    """A share in words; "?" if it is unknown."""
    if share is None:
        return "?"
    return f"{100 * share:.1f} %" if share < 0.1 else f"{100 * share:.0f} %"
