"""Spans: how long each named stage of a role took. Knows nothing of what the stages do."""

import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

_MAX_RECENT = 2 * 64
"""Numbers kept per stage and event: a stage that never reports must not grow, and a picture needs no more."""


class Spans:
    """How long each stage took: totals of the run, and every (start, duration) since the last event."""

    def __init__(self) -> None:
        self.total_s: defaultdict[str, float] = defaultdict(float)
        self.count: defaultdict[str, int] = defaultdict(int)
        self._recent: dict[str, list[float]] = {}
        self._lock = threading.Lock()  # side threads add while the loop takes

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Time one stage."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.add(name, begin, time.perf_counter() - begin)

    @contextmanager
    def cpu_span(self, name: str) -> Iterator[None]:
        """Time one stage of a side thread by its processor time: what it costs the loop.

        The clock would also count how long the thread was kept waiting for a core or a lock.
        """
        begin, cpu = time.perf_counter(), time.thread_time()
        try:
            yield
        finally:
            self.add(name, begin, time.thread_time() - cpu)

    def add(self, name: str, begin: float, duration_s: float) -> None:
        """Record a stage that was timed elsewhere."""
        with self._lock:
            self.total_s[name] += duration_s
            self.count[name] += 1
            recent = self._recent.setdefault(name, [])
            if len(recent) < _MAX_RECENT:
                recent += (round(begin, 6), round(duration_s, 6))

    def clear(self) -> None:
        """Count from here."""
        self.total_s.clear()
        self.count.clear()

    def take_recent(self) -> dict[str, list[float]]:
        """Start, duration, start, duration, ... of each stage since the last call, on the monotonic clock."""
        with self._lock:
            recent, self._recent = self._recent, {}
        return recent

    def mean_ms(self, name: str) -> float | None:
        """Mean duration of a stage, None if it never ran."""
        return 1e3 * self.total_s[name] / self.count[name] if self.count[name] else None
