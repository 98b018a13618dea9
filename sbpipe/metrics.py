"""Append-only JSONL events and spans: what every picture and summary is made from. Knows nothing of what it records."""

import json
import logging
import math
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

_MAX_RECENT = 2 * 64
"""Numbers kept per stage and event: a stage that never reports must not grow, and a picture needs no more."""


class Spans:
    """How long each named stage took: totals for the whole run, and every (start, duration) since the last event."""

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
        """Time one stage of a side thread by the processor time it took: what it costs the loop, not how long it was kept waiting."""
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
        """Start, duration, start, duration, ... of each stage since the last call; starts are on this machine's monotonic clock."""
        with self._lock:
            recent, self._recent = self._recent, {}
        return recent

    def mean_ms(self, name: str) -> float | None:
        """Mean duration of a stage, None if it never ran."""
        return 1e3 * self.total_s[name] / self.count[name] if self.count[name] else None


class EventLog:
    """One JSON object per line, whole lines only, flushed as written so that a kill loses at most the line being written."""

    def __init__(self, path: Path | None, role: str) -> None:
        self._file: TextIO | None = path.open("a", encoding="utf-8", buffering=1) if path else None
        self._lock = threading.Lock()
        self._role = role
        self.num_lost = 0

    def write(self, kind: str, **fields: Any) -> None:
        """Append one event, stamped with wall and monotonic time. A full disk loses events, never the run."""
        if self._file is None:
            return
        stamp = {"t": round(time.time(), 4), "clock": round(time.perf_counter(), 6), "role": self._role, "kind": kind}
        line = json.dumps(stamp | {name: plain(value) for name, value in fields.items()}, separators=(",", ":"))
        try:
            with self._lock:
                self._file.write(line + "\n")
        except (OSError, ValueError):
            self.num_lost += 1

    def close(self) -> None:
        """Write no more."""
        if self._file is not None:
            try:
                self._file.close()
            except OSError:
                self.num_lost += 1
            self._file = None


class Teller(logging.Handler):
    """Writes what is logged as events too, `warning` or `note`, so that who follows a run reads it where the run was started."""

    def __init__(self, events: EventLog) -> None:
        super().__init__(logging.INFO)
        self.events = events

    def emit(self, record: logging.LogRecord) -> None:
        """One event for one message."""
        self.events.write("warning" if record.levelno >= logging.WARNING else "note", text=record.getMessage())


def plain(value: Any) -> Any:
    """JSON has no NaN: a number that is not finite is written as null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    return value
