"""The whole run as a trace file in the trace-event format, for Perfetto (ui.perfetto.dev)."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sbpipe.runs import Run
from sbpipe.show.report.lanes import TRAINER, begins_of, stage_spans

MOST_EVENTS = 100_000
"""The most stages written: viewers refuse larger files, so of a longer run only the middle is written."""


def write_trace(run: Run, path: Path, most: int = MOST_EVENTS) -> str | None:
    """Write a run's trace; returns what it holds, or None if the run has no spans and nothing was written."""
    begins = begins_of(run)
    if not begins:
        return None
    is_whole = len(run.of("step")) >= run.num_steps
    whose = "of the whole run" if is_whole else "of the steps that were written one by one"
    begin, end, note = begins[0], float("inf"), f"{len(begins):,} stages {whose}"
    if len(begins) > most:
        first = (len(begins) - most) // 2
        # The middle, because start and end of a run are not typical.
        begin, end = begins[first], begins[first + most]
        middle = "from the middle of the run" if is_whole else f"from the middle {whose}"
        note = f"{most:,} of {len(begins):,} stages, {middle}"
    events = [*_stages(run, begin, end), *_counters(run, begin, end)]
    path.write_text(
        json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, separators=(",", ":")), encoding="utf-8"
    )
    return note


def _stages(run: Run, begin: float, end: float) -> Iterator[dict[str, Any]]:
    """Every stage as a complete event, each lane named where it first appears."""
    places: dict[str, tuple[int, int]] = {}
    for span in stage_spans(run, begin, end):
        # It began before the written part: its time would be negative.
        if span.begin < begin:
            continue
        if span.lane not in places:
            places[span.lane] = _place(span.lane, places)
            yield _named("process_name", places[span.lane], _role(span.lane))
            yield _named("thread_name", places[span.lane], span.lane)
        process, thread = places[span.lane]
        yield {
            "ph": "X",
            "name": span.stage,
            "cat": _role(span.lane),
            "ts": _microseconds(span.begin - begin),
            "dur": _microseconds(span.end - span.begin),
            "pid": process,
            "tid": thread,
            "args": {"for": span.task},
        }


def _named(what: str, place: tuple[int, int], name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": place[0], "tid": place[1], "args": {"name": name}}


def _counters(run: Run, begin: float, end: float) -> Iterator[dict[str, Any]]:
    """Staleness at each step and the queue at each progress event, as curves above the stages."""
    for kind, field, name in (
        ("step", "staleness_mean", "staleness (steps)"),
        ("progress", "queue", "queue (kept examples)"),
    ):
        for event in run.of(kind):
            clock, value = event.get("clock"), event.get(field)
            if clock is not None and value is not None and begin <= clock < end:
                at = _microseconds(clock - begin)
                yield {"ph": "C", "name": name, "ts": at, "pid": 1, "args": {name: value}}


def _role(lane: str) -> str:
    return lane.partition(",")[0]


def _place(lane: str, places: dict[str, tuple[int, int]]) -> tuple[int, int]:
    """Process and thread number of a lane that is not placed yet; the trainer is process 1."""
    roles = list(dict.fromkeys([TRAINER, *map(_role, places), _role(lane)]))
    return roles.index(_role(lane)) + 1, len(places) + 1


def _microseconds(seconds: float) -> float:
    return round(1e6 * seconds, 1)
