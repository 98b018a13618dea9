"""What a table of a report is: words, ready to be shown. Knows neither runs nor pages."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """Rows under a header, with one sentence that says how to read them."""

    title: str
    header: list[str]
    rows: list[list[str]]
    meaning: str
