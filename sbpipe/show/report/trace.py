"""The whole run as a trace file in the trace-event format, for Perfetto (ui.perfetto.dev) or
chrome://tracing.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sbpipe.runs import Run
from sbpipe.show.report.spans import bars_of, begins_of

MOST_EVENTS = 100_000
"""Stages written; a longer run has only its middle in the file, which viewers would otherwise refuse to open.
"""


def write_trace(run: Run, path: Path, most: int = MOST_EVENTS) -> str | None:
    """Write a run's trace; what to say of it, or None if the run has no spans and nothing was written."""
    begins = begins_of(run)
    if not begins:
        return None
    begin, end, note = begins[0], float("inf"), f"{len(begins):,} stages of the whole run"
    if len(begins) > most:
        first = (len(begins) - most) // 2
        begin, end = begins[first], begins[first + most]
        note = f"{most:,} of {len(begins):,} stages, from the middle of the run"
    events = [*_stages(run, begin, end), *_counters(run, begin, end)]
    path.write_text(
        json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, separators=(",", ":")), encoding="utf-8"
    )
    return note


def _stages(run: Run, begin: float, end: float) -> Iterator[dict[str, Any]]:
    """Every stage as a complete event, each lane named where it first appears."""
    places: dict[str, tuple[int, int]] = {}
    for bar in bars_of(run, begin, end):
        if bar.begin < begin:
            continue
        if bar.lane not in places:
            places[bar.lane] = _place(bar.lane, places)
            process, thread = places[bar.lane]
            yield {
                "ph": "M",
                "name": "process_name",
                "pid": process,
                "tid": thread,
                "args": {"name": _role(bar.lane)},
            }
            yield {
                "ph": "M",
                "name": "thread_name",
                "pid": process,
                "tid": thread,
                "args": {"name": bar.lane},
            }
        process, thread = places[bar.lane]
        yield {
            "ph": "X",
            "name": bar.stage,
            "cat": _role(bar.lane),
            "ts": _microseconds(bar.begin - begin),
            "dur": _microseconds(bar.end - bar.begin),
            "pid": process,
            "tid": thread,
            "args": {"for": bar.task},
        }


def _counters(run: Run, begin: float, end: float) -> Iterator[dict[str, Any]]:
    """Staleness at each step and the queue at each progress event, as curves above the stages."""
    for kind, field, name in (
        ("step", "staleness_mean", "staleness (steps)"),
        ("progress", "queue", "queue (kept examples)"),
    ):
        for event in run.of(kind):
            clock, value = event.get("clock"), event.get(field)
            if clock is not None and value is not None and begin <= clock < end:
                yield {
                    "ph": "C",
                    "name": name,
                    "ts": _microseconds(clock - begin),
                    "pid": 1,
                    "args": {name: value},
                }


def _role(lane: str) -> str:
    return lane.partition(",")[0]


def _place(lane: str, places: dict[str, tuple[int, int]]) -> tuple[int, int]:
    """Process and thread number of a lane that is not placed yet; the trainer is process 1."""
    roles = list(dict.fromkeys(["trainer", *map(_role, places), _role(lane)]))
    return roles.index(_role(lane)) + 1, len(places) + 1


def _microseconds(seconds: float) -> float:
    return round(1e6 * seconds, 1)
