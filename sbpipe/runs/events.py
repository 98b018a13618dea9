"""Events: append-only JSONL, one file a role. Knows nothing of what it records; `names/events.py` does."""

import json
import logging
import math
import threading
import time
from pathlib import Path
from typing import Any, TextIO


class EventLog:
    """One JSON object per line, flushed as written: a kill loses at most the line being written."""

    def __init__(self, path: Path | None, role: str) -> None:
        # Line-buffered: a line goes to the system whole, so a reader never waits for a buffer to fill.
        self._file: TextIO | None = path.open("a", encoding="utf-8", buffering=1) if path else None
        self._lock = threading.Lock()
        self._role = role
        self.num_lost = 0

    def write(self, kind: str, **fields: Any) -> None:
        """Append one event, stamped with wall and monotonic time. A full disk loses events, never the run."""
        if self._file is None:
            return
        stamp = {
            "t": round(time.time(), 4),
            # On Linux one clock for all processes of a host, so both roles' files share a time axis.
            "clock": round(time.perf_counter(), 6),
            "role": self._role,
            "kind": kind,
        }
        line = json.dumps(
            stamp | {name: plain(value) for name, value in fields.items()}, separators=(",", ":")
        )
        try:
            # Side threads write too, and two lines must not run into each other.
            with self._lock:
                self._file.write(line + "\n")
        except (OSError, ValueError):  # a full disk, or closed by another thread meanwhile
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
    """Writes what is logged as events too, so that it is read where the run was started."""

    def __init__(self, events: EventLog) -> None:
        super().__init__(logging.INFO)
        self.events = events

    def emit(self, record: logging.LogRecord) -> None:
        """One event for one message."""
        self.events.write(
            "warning" if record.levelno >= logging.WARNING else "note", text=record.getMessage()
        )


def plain(value: Any) -> Any:
    """JSON has no NaN: a number that is not finite is written as null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    return value
