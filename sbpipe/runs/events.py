"""Events: append-only JSONL, one file per role. Kinds and fields are defined in `names/events.py`."""

import json
import logging
import math
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from sbpipe.runs.names.files import recent_of
from sbpipe.runs.storm import StormGate

RECENT_BYTES = 256 << 10
"""The file for passing events is started over when it is longer than this."""
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


class EventLog:
    """One JSON object per line, flushed as written: a kill loses at most the line being written."""

    def __init__(
        self,
        path: Path | None,
        role: str,
        *,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        # Line-buffered: a line goes to the system whole, so a reader never waits for a buffer to fill.
        self._file: TextIO | None = path.open("a", encoding="utf-8", buffering=1) if path else None
        if self._file is not None and path is not None and not _ends_in_newline(path):
            self._file.write("\n")
        self._recent = _Recent(path.with_name(recent_of(path.name))) if path else None
        self._lock = threading.Lock()
        self._gate = StormGate()
        self._role, self._wall, self.clock = role, wall, clock
        self.num_lost = 0

    def write(self, kind: str, **fields: Any) -> None:
        """Append one event, stamped with wall and monotonic time. A full disk loses events, never the run."""
        file = self._file
        if file is None:
            return
        with self._lock:
            is_let, num_left_out = self._gate.admit(kind, self.clock())
        if not is_let:
            return
        if num_left_out:
            self._say_left_out(kind, num_left_out)
        self._append(file, self._line(kind, fields))

    def write_recent(self, kind: str, **fields: Any) -> None:
        """Append an event that matters only now to a small file, which drops its old events."""
        if self._recent is not None and self._file is not None:
            self._append(self._recent, self._line(kind, fields))

    def close(self) -> None:
        """Write no more."""
        if self._file is None or self._recent is None:
            return
        for kind, count in self._gate.take_left_out():
            self._say_left_out(kind, count)
        try:
            self._recent.close()
            self._file.close()
        except OSError:
            self.num_lost += 1
        self._file = None

    def _say_left_out(self, kind: str, count: int) -> None:
        if self._file is not None:
            self._append(self._file, self._line("left_out", {"of": kind, "count": count}))

    def _line(self, kind: str, fields: dict[str, Any]) -> str:
        event = {
            "t": round(self._wall(), 4),
            # On Linux all processes of a host share this clock, so both roles' files share a time axis.
            "clock": round(self.clock(), 6),
            "role": self._role,
            "kind": kind,
            **fields,
        }
        try:
            return _encode(event) + "\n"
        except ValueError:
            # A NaN is rare, and checking every number of every event would cost more than writing it.
            return _encode(plain(event)) + "\n"

    def _append(self, file: "TextIO | _Recent", line: str) -> None:
        try:
            # Side threads write too, and two lines must not run into each other.
            with self._lock:
                file.write(line)
        except (OSError, ValueError):  # a full disk, or closed by another thread meanwhile
            self.num_lost += 1


class _Recent:
    """A file that is created on the first write, and started over when it is long."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: TextIO | None = None
        self._num_bytes = 0
        # After a resume, the last events of the earlier process are out of date.
        path.unlink(missing_ok=True)

    def write(self, line: str) -> None:
        if self._file is None or self._num_bytes > RECENT_BYTES:
            self.close()
            # A new file, not the old one truncated: a reader of the old one must not see half of it.
            self._path.unlink(missing_ok=True)
            self._file = self._path.open("w", encoding="utf-8", buffering=1)
            self._num_bytes = 0
        self._file.write(line)
        self._num_bytes += len(line)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class Teller(logging.Handler):
    """Writes log messages as events too, so that they are shown where the run was started."""

    def __init__(self, events: EventLog) -> None:
        super().__init__(logging.INFO)
        self.events = events

    def emit(self, record: logging.LogRecord) -> None:
        """One event for one message."""
        self.events.write(
            "warning" if record.levelno >= logging.WARNING else "note", text=record.getMessage()
        )


def _ends_in_newline(path: Path) -> bool:
    """Whether the last line is complete; a kill or a power cut may have left half of one."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        return file.read(1) in (b"", b"\n")


def plain(value: Any) -> Any:
    """The value with every non-finite number replaced by None: JSON has no NaN."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    return value
