"""What processes hold while they live: memory and file descriptors by age, from outside, and how these grow.

Processes are compared at the same age, since a process that was just started holds less than an old one. It
must not know what is done to them.
"""

import os
import resource
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

WARM_S = 10.0
"""From this age on a process should hold a constant amount."""
_AT_ONCE = 5
"""Readings whose median counts as one."""


class Reading(NamedTuple):
    """What a process held at an age."""

    age_s: float
    rss_mb: float
    num_files: int


@dataclass
class Life:
    """One process from when it was first seen."""

    role: str
    since: float
    readings: list[Reading] = field(default_factory=list)

    @property
    def age_s(self) -> float:
        """How old it was when it was last seen."""
        return self.readings[-1].age_s if self.readings else 0.0

    def once_warm(self) -> Reading | None:
        """What it held when it had warmed up; None if it ended earlier."""
        warm = [reading for reading in self.readings if reading.age_s >= WARM_S]
        return _middle(warm[:_AT_ONCE]) if len(warm) >= _AT_ONCE else None

    def at_its_end(self) -> Reading:
        """What it held at last."""
        return _middle(self.readings[-_AT_ONCE:])


class Vitals:
    """Notes what processes hold, life by life, in the order in which they began."""

    def __init__(self) -> None:
        self._lives: dict[int, Life] = {}

    def note(self, role: str, pid: int) -> None:
        """Read one process now; nothing if it has just ended."""
        now = time.monotonic()
        try:
            rss_mb, num_files = _rss_mb(pid), len(os.listdir(f"/proc/{pid}/fd"))
        except (OSError, IndexError):
            return
        life = self._lives.setdefault(pid, Life(role, now))
        life.readings.append(Reading(now - life.since, rss_mb, num_files))

    def of(self, role: str) -> list[Life]:
        """The lives of a role."""
        return [life for life in self._lives.values() if life.role == role]


def growth_across(lives: Sequence[Life]) -> tuple[float, int] | None:
    """The growth from earlier to later processes at the same age: memory as a share, files as a number.

    Medians of the first and of the last third; None where there are too few.
    """
    warm = [reading for life in lives if (reading := life.once_warm())]
    third = len(warm) // 3
    if third < 2:
        return None
    first, last = _middle(warm[:third]), _middle(warm[-third:])
    return last.rss_mb / first.rss_mb - 1.0, last.num_files - first.num_files


def growth_within(lives: Iterable[Life]) -> tuple[float, float] | None:
    """The growth of the longest life after its warm-up, as a share, and its length."""
    longest = max(lives, key=lambda life: life.age_s, default=None)
    warm = longest.once_warm() if longest else None
    # Judged over at least twice the warm-up, because a slow machine may warm up for longer.
    if longest is None or warm is None or longest.age_s < 3 * WARM_S:
        return None
    return longest.at_its_end().rss_mb / warm.rss_mb - 1.0, longest.age_s


def _middle(readings: Sequence[Reading]) -> Reading:
    return Reading(
        statistics.median(reading.age_s for reading in readings),
        statistics.median(reading.rss_mb for reading in readings),
        statistics.median_high(reading.num_files for reading in readings),
    )


def _rss_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() / 1e6
