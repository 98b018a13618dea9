"""The stages of a run on one clock, with a lane per thread, for timeline and trace. Knows no picture."""

import statistics
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from sbpipe.runs import Run
from sbpipe.runs.names import SELECTOR_STAGES, SIDE_STAGES, STAGES
from sbpipe.runs.numbers import number
from sbpipe.runs.reader import SAME_HOST_S, Event

TRAINER = "trainer"
INLINE_STAGES = set(SELECTOR_STAGES) - set(SIDE_STAGES)
"""Stages that only a selector has; in mode inline the trainer's events hold them."""
PROCESSOR_TIME = {stage.name for stage in STAGES if stage.nature == "processor"}
"""Stages measured in processor time: they are no stretch of the clock, so they are in no lane."""


class StageSpan(NamedTuple):
    """One stage, from `begin` to `end` in seconds on the trainer's clock."""

    lane: str
    stage: str
    begin: float
    end: float
    task: str
    """The step or lease it belongs to."""


def stage_spans(run: Run, begin: float = float("-inf"), end: float = float("inf")) -> Iterator[StageSpan]:
    """Every stage that overlaps a stretch of time: the trainer's first, then each selector's."""
    for lane, events, shift in _sources(run):
        for event in events:
            clock = number(event, "clock")
            if clock is not None and clock + shift < begin:
                continue  # an event is written after its spans; this skips most of a long run
            task = f"step {event.get('step')}" if lane == TRAINER else f"lease {event.get('lease')}"
            for stage, start, seconds in pairs_of(event):
                if start + shift < end and start + shift + seconds > begin:
                    where = _lane_of(stage, lane)
                    yield StageSpan(where, stage, start + shift, start + shift + seconds, task)


def begins_of(run: Run) -> list[float]:
    """When each stage began, in order."""
    return sorted(
        start + shift
        for _, events, shift in _sources(run)
        for event in events
        for _, start, _ in pairs_of(event)
    )


def pairs_of(event: Event) -> list[tuple[str, float, float]]:
    """(stage, start, duration) of each span of an event, in seconds on its own clock."""
    return [
        (stage, start, seconds)
        for stage, flat in (event.get("spans") or {}).items()
        if stage not in PROCESSOR_TIME
        # Not strict: a damaged event may have an odd number.
        for start, seconds in zip(flat[::2], flat[1::2], strict=False)
    ]


def clock_shift(reference: Sequence[Event], other: Sequence[Event]) -> float:
    """The offset from another file's clock to the reference's; 0 on one host."""
    # On one host the monotonic clock is shared, and finer than wall time. Two hosts share only wall time,
    # which NTP keeps close.
    ours, theirs = _wall_minus_clock(reference), _wall_minus_clock(other)
    if ours is None or theirs is None or abs(theirs - ours) < SAME_HOST_S:
        return 0.0
    return theirs - ours


def selector_lane(name: str) -> str:
    """The lane of a selector; the last part of its id is unique enough."""
    return f"selector {name.rpartition('-')[2]}"


def step_begins(run: Run) -> list[float]:
    """When each step began its forward pass; without spans, when it wrote its event."""
    return [_first(event, "forward") for event in run.of("step")]


def _first(event: dict[str, Any], stage: str) -> float:
    flat = (event.get("spans") or {}).get(stage) or [number(event, "clock") or 0.0]
    return float(flat[0])


def _sources(run: Run) -> list[tuple[str, list[Event], float]]:
    """Each events file as (lane, events, what to add to its clock)."""
    reference = run.of("step") or run.of("start")
    selectors = [
        (selector_lane(name), found, clock_shift(reference, found)) for name, found in run.selections.items()
    ]
    return [(TRAINER, run.of("step"), 0.0), *selectors]


def _lane_of(stage: str, lane: str) -> str:
    """The thread a stage runs in; in mode inline the trainer's events hold the selector's stages too."""
    if lane != TRAINER:
        return f"{lane}, weights in" if stage.startswith("transfer") else lane
    if stage in INLINE_STAGES:
        return selector_lane("inline")
    return f"{TRAINER}, side threads" if stage in SIDE_STAGES else TRAINER


def _wall_minus_clock(events: Sequence[Event]) -> float | None:
    stamps = [(number(event, "t"), number(event, "clock")) for event in events]
    differences = [t - clock for t, clock in stamps if t is not None and clock is not None]
    return statistics.median(differences) if differences else None
