"""What a finding is, and how it writes numbers. Pure."""

from collections.abc import Mapping
from typing import Any, NamedTuple

Numbers = Mapping[str, Any]
"""A summary; what is missing is unknown."""

WAITED = 0.02
"""Share of the loop's time, or of the trained examples, below which nobody would notice."""


class Finding(NamedTuple):
    """A finding: its sentences, its part of the headline, what to do about it ("" = nothing)."""

    text: str
    short: str
    knob: str = ""


def percent(share: float | None) -> str:
    """A share in words; "?" where it is not known."""
    if share is None:
        return "?"
    return f"{100 * share:.1f} %" if share < 0.1 else f"{100 * share:.0f} %"
