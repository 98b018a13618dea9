"""What the events of a short run say of its costs, and how far they vary. Pure: lines in, numbers out.

By the wall clock, and means of all there was: what else this machine does is part of what a run would meet,
and a run's period is a mean too.
"""

import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

Event = Mapping[str, Any]
Costs = dict[str, Any]
_APPLYING = ("apply", "apply_fast", "refresh")
_SCORING = ("view", "score", "select")


class Window(NamedTuple):
    """A stretch of the host's monotonic clock: only what lies within it counts."""

    begin: float
    end: float


class _Lease(NamedTuple):
    """What one lease took its selector, in seconds."""

    scoring_s: float
    applying_s: float
    rest_s: float
    """Of its time, all else: it was read, its answer was encoded and sent, events were written."""
    candidates: int
    transfer_s: float


def trainer_costs(events: Iterable[Event], within: Window) -> Costs:
    """Milliseconds of a step, of loading a batch and of a publish, as the loop took them."""
    spans = _spans_of(event for event in events if event["kind"] == "step")
    begins = [begin for begin, _ in spans.get("forward", []) if within.begin <= begin < within.end]
    aside = sorted(spans.get("wait", []) + spans.get("publish", []) + spans.get("publish_fast", []))
    steps_s = []
    for begin, end in itertools.pairwise(begins):
        steps_s.append(end - begin - sum(took for at, took in aside if begin <= at < end))
    publish_s, load_s = (
        [took for at, took in spans.get(name, []) if within.begin <= at < within.end]
        for name in ("publish", "view")
    )
    return {
        "step_ms": mean_ms(steps_s),
        "step_spread": spread(steps_s),
        "publish_ms": mean_ms(publish_s),
        "load_ms": mean_ms(load_s),
        "steps": len(steps_s),
    }


def selector_costs(events: Iterable[Event], within: Window) -> Costs | None:
    """Microseconds of a candidate, milliseconds of an apply and of a lease apart from both; None if none
    was answered.
    """
    leases = _leases_in([event for event in events if event["kind"] == "selection"], within)
    if not leases:
        return None
    each_s = [lease.scoring_s / lease.candidates for lease in leases]
    applied_s = [lease.applying_s for lease in leases if lease.applying_s]
    transfers_s = [lease.transfer_s for lease in leases if lease.transfer_s]
    works_s = [(lease.scoring_s + lease.applying_s + lease.rest_s) / lease.candidates for lease in leases]
    return {
        "score_us": 1e6 * statistics.fmean(each_s),
        "score_spread": spread(works_s),
        "apply_ms": mean_ms(applied_s),
        "transfer_ms": mean_ms(transfers_s),
        "lease_ms": mean_ms([lease.rest_s for lease in leases]),
        "leases": len(leases),
    }


def _leases_in(selections: Sequence[Event], within: Window) -> list[_Lease]:
    """The leases that were begun and answered meanwhile.

    A selector is idle before each, if only for an instant: in between it is at work on one. Before the first
    it was idle twice: for the welcome too.
    """
    found = []
    for event, after in itertools.pairwise(selections):
        *_, at, waited_s = event["spans"]["idle"]
        begin, end, took = at + waited_s, after["spans"]["idle"][0], _seconds_of(event)
        if within.begin <= begin and end < within.end and event["candidates"]:
            scoring_s, applying_s = (sum(took.get(name, 0.0) for name in of) for of in (_SCORING, _APPLYING))
            rest_s = max(0.0, end - begin - scoring_s - applying_s)
            found.append(
                _Lease(scoring_s, applying_s, rest_s, event["candidates"], took.get("transfer", 0.0))
            )
    return found


def _spans_of(events: Iterable[Event]) -> dict[str, list[tuple[float, float]]]:
    """By stage: when each began and how long it took."""
    found: dict[str, list[tuple[float, float]]] = {}
    for event in events:
        for stage, times in event["spans"].items():
            found.setdefault(stage, []).extend(zip(times[::2], times[1::2], strict=True))
    return found


def _seconds_of(event: Event) -> dict[str, float]:
    return {stage: sum(times[1::2]) for stage, times in event["spans"].items()}


def mean_ms(seconds: Sequence[float]) -> float:
    """The mean in milliseconds; 0 of nothing."""
    return 1e3 * statistics.fmean(seconds) if seconds else 0.0


def spread(values: Sequence[float]) -> float:
    """The standard deviation over the mean; 0 of nothing."""
    return statistics.pstdev(values) / statistics.fmean(values) if values else 0.0
