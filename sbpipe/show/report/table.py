"""A table of results: text, ready for a page, a terminal or a file. Knows neither runs nor pages."""

from collections.abc import Sequence
from dataclasses import dataclass, field

NOTHING = "–"
"""Shown in place of a missing number."""


@dataclass(frozen=True)
class Table:
    """Rows under a header, with a sentence, or notes of one line each, on how to read them."""

    title: str
    header: list[str]
    rows: list[list[str]]
    meaning: str = ""
    notes: list[str] = field(default_factory=list)
    is_detail: bool = False
    """Whether it is too long for a terminal, and shown on pages only."""

    def as_text(self) -> str:
        """For a terminal."""
        widths = [max(len(cell) for cell in column) for column in zip(self.header, *self.rows, strict=True)]
        lines = [
            "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
            for row in [self.header, *self.rows]
        ]
        return "\n".join([self.title, *(f"  {line}".rstrip() for line in [*lines, *self.notes])])

    def as_markdown(self) -> str:
        """For a file."""
        rows = [self.header, ["---"] * len(self.header), *self.rows]
        notes = [f"- {note}" for note in self.notes]
        lines = map(markdown_row, rows)
        return "\n".join([f"## {self.title}", "", *lines, *(["", *notes] if notes else [])]) + "\n"

    def as_sentences(self) -> str:
        """How to read it, as one paragraph."""
        return " ".join([self.meaning, *(f"{note[0].upper()}{note[1:]}." for note in self.notes)]).strip()


def markdown_row(cells: Sequence[str]) -> str:
    """A row of a Markdown table; `|` in cells is escaped."""
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def percent_pm(mean: float | None, sd: float | None) -> str:
    """A share with its spread, in per cent."""
    return NOTHING if mean is None else f"{100 * mean:.2f}%" + ("" if sd is None else f" ±{100 * sd:.2f}")


def seconds_pm(mean: float | None, sd: float | None) -> str:
    """Seconds with their spread."""
    return NOTHING if mean is None else f"{mean:.1f}s" + ("" if sd is None else f" ±{sd:.1f}")


def number(value: float | None, form: str = ".2f") -> str:
    """A number, or a dash."""
    return NOTHING if value is None else format(value, form)


def rounded(value: float) -> str:
    """A number to three digits, or to a whole one if it is large."""
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
