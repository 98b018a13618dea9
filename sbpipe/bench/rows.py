"""A measured number, its bar, and how they are printed; and the one core small things are measured on."""

import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Row:
    """One measurement; `at_least` or `at_most` is its bar, if it has one."""

    bench: str
    what: str
    value: float
    unit: str
    at_least: float | None = None
    at_most: float | None = None

    @property
    def is_met(self) -> bool | None:
        """Whether the bar is met; None without one."""
        if self.at_least is not None:
            return self.value >= self.at_least
        return self.value <= self.at_most if self.at_most is not None else None

    def to_dict(self) -> dict[str, Any]:
        """For programs."""
        return {
            "bench": self.bench,
            "what": self.what,
            "value": self.value,
            "unit": self.unit,
            "at_least": self.at_least,
            "at_most": self.at_most,
            "is_met": self.is_met,
        }


def table(rows: list[Row]) -> str:
    """For people."""
    cells = [("bench", "what", "measured", "bar", "")]
    for row in rows:
        bar = (
            f"≥ {_short(row.at_least)}"
            if row.at_least is not None
            else f"≤ {_short(row.at_most)}"
            if row.at_most is not None
            else ""
        )
        verdict = {True: "met", False: "MISSED", None: ""}[row.is_met]
        cells.append((row.bench, row.what, f"{_short(row.value)} {row.unit}", bar, verdict))
    return cells_table(cells)


def cells_table(cells: Sequence[Sequence[str]]) -> str:
    """Cells in columns as wide as they need to be."""
    widths = [max(len(line[k]) for line in cells) for k in range(len(cells[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    )


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.3g}"


@contextmanager
def one_core() -> Iterator[None]:
    """Keep to one core and one thread meanwhile."""
    import torch

    cores, threads = os.sched_getaffinity(0), torch.get_num_threads()
    os.sched_setaffinity(0, {min(cores)})
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        os.sched_setaffinity(0, cores)


def seconds_per_call(call: Callable[[], Any], *, budget_s: float = 1.0, repeats: int = 7) -> float:
    """Median over repeats of the mean time of a call; the first call warms up."""
    call()
    begin = time.perf_counter()
    call()
    count = max(1, int(budget_s / repeats / max(1e-9, time.perf_counter() - begin)))
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        for _ in range(count):
            call()
        times.append((time.perf_counter() - begin) / count)
    # A mean would count what other processes took in the middle of one repeat.
    return statistics.median(times)
