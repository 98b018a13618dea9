"""A curve of bounded length: when it is full, neighbours are merged. Knows no event."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Rule = Literal["last", "mean", "max"]
Number = float | None

LIMIT = 1500
"""Points kept of a curve: more than a screen is wide."""


@dataclass(frozen=True)
class Mark:
    """How much of a series a page already has."""

    generation: int = -1
    num_closed: int = 0
    num_added: int = 0


class Series:
    """Rows of named numbers; a row stands for `stride` added ones, merged by each column's rule."""

    def __init__(self, columns: Mapping[str, Rule], limit: int = LIMIT) -> None:
        self.columns = tuple(columns)
        self._rules = tuple(columns.values())
        self._limit = limit
        self._closed: list[list[Number]] = []
        self._open: list[list[Number]] = []
        self._stride = 1
        self._generation = 0
        self._num_added = 0

    def add(self, values: Mapping[str, Number]) -> None:
        """Append one row; columns that are not given are empty."""
        self._num_added += 1
        self._open.append([values.get(name) for name in self.columns])
        if len(self._open) >= self._stride:
            self._closed.append(self._merged(self._open))
            self._open = []
        if len(self._closed) >= self._limit:
            pairs = zip(self._closed[::2], self._closed[1::2], strict=False)
            # A last row without a partner stays as it is.
            odd = self._closed[len(self._closed) & ~1 :]
            self._closed = [self._merged(list(pair)) for pair in pairs] + odd
            self._stride *= 2
            self._generation += 1

    def cut(self, column: str, least: float) -> None:
        """Remove every row whose `column` is at least `least`."""
        at = self.columns.index(column)
        kept = [row for row in self._closed if (value := row[at]) is None or value < least]
        self._closed, self._open = kept, []
        self._generation += 1
        self._num_added += 1

    def rows(self) -> list[list[Number]]:
        """Every row; the last one may still be incomplete."""
        return [*self._closed, *([self._merged(self._open)] if self._open else [])]

    def since(self, mark: Mark) -> tuple[dict[str, Any] | None, Mark]:
        """The rows that replace those from `at` on, to bring a page up to date; None if nothing is new."""
        now = Mark(self._generation, len(self._closed), self._num_added)
        if now == mark:
            return None, mark
        # A merge or a cut moves rows to other places, so all of them are sent again.
        at = mark.num_closed if mark.generation == now.generation else 0
        return {"columns": self.columns, "at": at, "rows": self.rows()[at:]}, now

    def _merged(self, rows: list[list[Number]]) -> list[Number]:
        if len(rows) == 1:
            return rows[0]
        return [_merge(rule, [row[k] for row in rows]) for k, rule in enumerate(self._rules)]


def _merge(rule: Rule, values: list[Number]) -> Number:
    known = [value for value in values if value is not None]
    if not known:
        return None
    if rule == "last":
        return known[-1]
    return max(known) if rule == "max" else round(sum(known) / len(known), 6)
