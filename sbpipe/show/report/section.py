"""A section of a report: tiles, tables and charts under one heading. Knows neither runs nor HTML."""

from dataclasses import dataclass, field

from sbpipe.show.charts import Chart
from sbpipe.show.report.table import Table


@dataclass(frozen=True)
class Section:
    """One part of the page; a folded one is drawn when it is opened."""

    name: str
    """Its anchor: lower case, words joined by dashes."""
    title: str
    """Its heading; "" for the head of a page, which needs none."""
    charts: list[Chart] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    verdict: list[tuple[str, str]] = field(default_factory=list)
    """The verdict, read first: (label, words); the headline has no label."""
    tiles: list[tuple[str, str]] = field(default_factory=list)
    """The first numbers a reader asks for: (label, value)."""
    notes: list[str] = field(default_factory=list)
    """What is missing, damaged or worth a warning."""
    is_folded: bool = False
