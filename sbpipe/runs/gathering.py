"""What a reader keeps of a stream of events, so that memory is bounded for any length of run. Knows no file.

A run that is not long is kept whole. Each class takes events in order, and drops those that a resume repeats.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from sbpipe.runs.line import Event
from sbpipe.runs.numbers import number

MOST_ROWS = 1 << 15
"""Rows of a curve. 30 million steps make fewer; rows are merged for older files, which have an event for
every step.
"""
MOST_EVALUATIONS = 20_000
MOST_SCORES = 2048


def is_taken_back(event: Mapping[str, Any], step: float) -> bool:
    """Whether a resume at this step repeats the event's work, or has overcome its failure."""
    # `step` events count from 0, so step S comes after a checkpoint of S steps; other kinds count steps done.
    kind, at = event.get("kind"), number(event, "step") or 0
    if kind in ("step", "steps"):
        return at >= step or event.get("is_partial") is True
    return kind == "failed" or (kind in ("progress", "eval", "scores") and at > step)


class FirstAndLast:
    """The first events of a kind, and the last one."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._first: list[Event] = []
        self._last: Event | None = None

    def add(self, event: Event) -> None:
        """Take in an event."""
        if len(self._first) < self._most:
            self._first.append(event)
        else:
            self._last = event

    def take_back(self, step: float) -> None:
        """Forget the events that a resume from this step repeats."""
        self._first = [event for event in self._first if not is_taken_back(event, step)]
        if self._last is not None and is_taken_back(self._last, step):
            self._last = None

    def events(self) -> list[Event]:
        """Those kept, in order."""
        return [*self._first, *([self._last] if self._last is not None else [])]


class Evaluations:
    """All evaluations; if there are very many, every second, fourth, ... and each that beat all before it.

    So for any target the first evaluation that reached it is kept.
    """

    def __init__(self, most: int = MOST_EVALUATIONS) -> None:
        self._most = most
        self._events: list[Event] = []

    def add(self, event: Event) -> None:
        """Take in an event."""
        # The errors per class are not drawn, and with thousands of classes they would take most memory.
        event = {name: value for name, value in event.items() if name != "class_errors"}
        self._events.append(event)
        if len(self._events) > self._most:
            self._thin()

    def _thin(self) -> None:
        kept, best = [], float("inf")
        for place, event in enumerate(self._events):
            error = number(event, "error")
            is_best = error is not None and error < best
            best = error if is_best and error is not None else best
            if is_best or place % 2 == 0 or place == len(self._events) - 1:
                kept.append(event)
        # If nearly every evaluation was a new best, these are too many as well.
        self._events = kept if len(kept) <= 0.75 * self._most else [*kept[:-1:2], kept[-1]]

    def take_back(self, step: float) -> None:
        """Forget the events that a resume from this step repeats."""
        self._events = [event for event in self._events if not is_taken_back(event, step)]

    def events(self) -> list[Event]:
        """Those kept, in order."""
        return self._events


class Scores(Evaluations):
    """All `scores` events; if there are very many, neighbours are merged and their counts added."""

    def __init__(self, most: int = MOST_SCORES) -> None:
        super().__init__(most)

    def _thin(self) -> None:
        pairs = zip(self._events[::2], self._events[1::2], strict=False)
        odd = self._events[len(self._events) & ~1 :]
        self._events = [*(_together(*pair) for pair in pairs), *odd]


def _together(one: Event, other: Event) -> Event:
    counts = {}
    for name in ("class_considered", "class_kept"):
        first, second = one.get(name) or [], other.get(name) or []
        counts[name] = (
            [(a or 0) + (b or 0) for a, b in zip(first, second, strict=True)]
            if len(first) == len(second)
            else second or first
        )
    return other | counts


class Stretch(NamedTuple):
    """Consecutive steps; their losses are None if no loss was a number."""

    first: float
    last: float
    num_steps: int
    loss: float | None
    """Mean."""
    low: float | None
    high: float | None


class StepCurve:
    """The training loss over all steps, and how many there were."""

    def __init__(self, most: int = MOST_ROWS) -> None:
        self._most = most
        self._rows: list[Stretch] = []
        self._is_last_partial = False

    def add(self, event: Event) -> None:
        """Take in a `step` or a `steps` event."""
        last = number(event, "step")
        if last is None:
            return
        self._is_last_partial = event.get("is_partial") is True
        first, loss = number(event, "first"), number(event, "loss")
        low, high = number(event, "loss_low"), number(event, "loss_high")
        self._rows.append(
            Stretch(
                last if first is None else first,
                last,
                int(number(event, "count") or 1),
                loss,
                loss if low is None else low,
                loss if high is None else high,
            )
        )
        if len(self._rows) >= self._most:
            pairs = zip(self._rows[::2], self._rows[1::2], strict=False)
            self._rows = [_merged(*pair) for pair in pairs]

    def take_back(self, step: float) -> None:
        """Forget the steps that a resume from this step repeats."""
        rows = self._rows[:-1] if self._is_last_partial else self._rows
        self._rows, self._is_last_partial = [row for row in rows if row.last < step], False

    @property
    def rows(self) -> list[Stretch]:
        """In order."""
        return self._rows


def _merged(one: Stretch, other: Stretch) -> Stretch:
    num_steps = one.num_steps + other.num_steps
    if one.loss is None or other.loss is None:
        told = other if one.loss is None else one
        return told._replace(first=one.first, last=other.last, num_steps=num_steps)
    return Stretch(
        one.first,
        other.last,
        num_steps,
        (one.loss * one.num_steps + other.loss * other.num_steps) / num_steps,
        _least(one.low, other.low),
        None if one.high is None or other.high is None else max(one.high, other.high),
    )


def _least(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else min(a, b)
