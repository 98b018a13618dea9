"""A chart: a specification with a title, and one sentence on how to read it."""

from dataclasses import dataclass, field
from typing import Any

Spec = dict[str, Any]


@dataclass(frozen=True)
class Chart:
    """One picture.

    `spec` is a Vega-Lite specification with its data inside (`data.values`) and without `$schema`, title and
    theme, which the page and the renderer add. Every axis and legend in it has a title, with its unit. If it
    is empty, nothing is drawn and `meaning` says why.
    """

    name: str
    """File name and anchor: lower case, words joined by dashes."""
    title: str
    meaning: str
    """How to read it, in a sentence or two, for a reader who does not know the paper."""
    spec: Spec
    notes: tuple[str, ...] = field(default=())
    """What is missing or was left out, and why."""
