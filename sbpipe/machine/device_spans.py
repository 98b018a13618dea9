"""Spans on an accelerator's own clock: how long the device took for a stage, not how long launching it took.

The host only queues work: its clock sees neither how long a stage takes nor when the device has nothing to
do. So an event is queued where a stage begins and one where it ends, and what lies between them is read when
both have come: a step or so late, and never waited for. Together the stages of a loop are the device's time.
A stage that waits lasts as long as the device has nothing to do in it. One that computes lasts from its first
kernel to its last: where the host launches slower than the device computes, there are gaps, which are
estimated (`gaps.py`) for all that lies between two waits (`rounds.py`). It must not know what the stages do.
"""

import threading
import time
from collections import deque
from collections.abc import Collection
from typing import NamedTuple, TypeAlias

import torch

from sbpipe.machine.event_clock import EventClock, Stretch, refusal_to_time
from sbpipe.machine.gaps import Gaps
from sbpipe.machine.holding import Holding
from sbpipe.machine.rounds import Rounds, Stage
from sbpipe.machine.side_work import SideWork
from sbpipe.runs.spans import Gathered, Span, Spans, Stages


class Plan(NamedTuple):
    """Which stages a device times: those of one thread, the loop's."""

    timed: Collection[str]
    waiting: Collection[str] = ()
    """Of these, stages in which only other threads give the device work."""
    worked: str = ""
    """What such work counts as."""
    apart: Collection[str] = ()
    """Of these, stages at whose end the host has waited for the device itself: they are read then."""
    side: Collection[str] = ()
    """Stages of another thread, timed by the host, whose work on the device is no waiting."""
    left_out: Collection[str] = ()
    """Of these, stages that are no part of a round: what lies between two that wait."""
    is_looked_into: bool = False
    """Whether gaps are estimated: before one round in many the device is held back."""


def spans_on(device: torch.device, plan: Plan) -> tuple[Spans, str]:
    """Spans that time these stages on the device, and what a user shall know if they cannot: "" = nothing."""
    if device.type == "cpu":
        return Spans(), ""
    if reason := refusal_to_time(device):
        return Spans(), (
            f"{device} does not tell how long its work takes ({reason}): busy and idle are of the host, "
            "which only launches it"
        )
    return DeviceSpans(device, plan), ""


class _Queued(NamedTuple):
    """A stage whose end the device may not have reached."""

    stage: Stage
    begin: torch.Event
    end: torch.Event
    asked_at: float
    """When the host queued its beginning: the device cannot have begun before."""
    within: list[tuple[str, float, float]]
    """Name, begin and duration of what the host timed meanwhile."""
    into: Spans
    """Where it is added: to all, or to the pieces of a stage that comes in several."""


class _Begun(NamedTuple):
    """A round begins: where on the device, and when for the host."""

    end: torch.Event
    at: float
    is_held: bool


_Item: TypeAlias = _Queued | _Begun | Spans
"""Spans are the pieces of stages, when all of them have been queued."""


class DeviceSpans(Spans):
    """Spans whose stages, as far as they are planned, are timed by the device; the others by the host."""

    def __init__(self, device: torch.device, plan: Plan) -> None:
        super().__init__()
        self.clock = EventClock(device)
        self._plan = plan
        self._beside = SideWork()
        self._queue: deque[_Item] = deque()
        """What is to be read."""
        self._gaps = Gaps(Holding(device, self.clock.mark))
        self._rounds = Rounds(plan.waiting, plan.left_out, self._gaps.note)
        self._worked_in_waits_s = 0.0
        self._open: _DeviceSpan | None = None
        self._thread = 0

    def span(self, name: str) -> Span:
        """Time one stage."""
        if name in self._plan.side:
            return _SideSpan(self, name)
        return _DeviceSpan(self, name, self) if name in self._plan.timed else super().span(name)

    def aside(self, name: str) -> Span:
        """Time a stage that waits, but for no batch: no round ends with it, none is held back after it."""
        return _DeviceSpan(self, name, self, is_aside=True) if name in self._plan.timed else self.span(name)

    def gathered(self) -> Gathered:
        """Time stages that come in several pieces, each of which counts once."""
        return _GatheredOnDevice(self)

    def add(self, name: str, begin: float, duration_s: float) -> None:
        """Record what the host timed; within a stage of the device, as much as lies in it there too."""
        if self._open is not None and threading.get_ident() == self._thread:
            self._open.within.append((name, begin, duration_s))
        else:
            super().add(name, begin, duration_s)

    def clear(self) -> None:
        """Count from here, when the device has done what it was asked for before."""
        self._queue.clear()
        self._gaps.clear()
        self._rounds.clear()
        self._worked_in_waits_s = 0.0
        super().clear()
        if self._plan.waiting:
            begin = self.clock.mark()
            begin.synchronize()  # once in a run: what was asked for before is no part of what is counted
            self._queue.append(_Begun(begin, time.perf_counter(), is_held=False))

    def totals(self) -> Stages:
        """Every stage that the device has ended so far."""
        self.read()
        return super().totals()

    def take_recent(self) -> dict[str, list[float]]:
        """Start, duration, ... of each stage that the device has ended since the last call."""
        self.read()
        return super().take_recent()

    def settle(self) -> None:
        """Wait until the device has ended every stage."""
        last = next((item for item in reversed(self._queue) if not isinstance(item, Spans)), None)
        if last is not None:
            last.end.synchronize()
        self.read()
        self._rounds.end()

    def read(self) -> None:
        """Add the stages that the device has ended; waits for nothing."""
        while self._queue:
            item = self._queue[0]
            if not isinstance(item, Spans) and not item.end.query():
                return
            self._queue.popleft()
            if isinstance(item, _Queued):
                self._read(item)
            elif isinstance(item, _Begun):
                self._begin_round(item)
            else:
                for name, recent in item.take_recent().items():
                    super().add(name, recent[0], item.total_s[name])

    def worked_s(self, work: Collection[str]) -> float:
        """Seconds in which the device computed: between two waits, and what was given it in them."""
        if not self._plan.waiting:
            return super().worked_s(work)
        return self._gaps.worked_s(work) + self._worked_in_waits_s

    def worked_error_s(self) -> float:
        """How far off that may be."""
        return self._gaps.error_s if self._plan.waiting else 0.0

    def gap_s(self) -> float:
        """Seconds between two waits in which the device had nothing to do, as an estimate."""
        return self._gaps.gap_s

    @property
    def waiting(self) -> Collection[str]:
        """Stages that wait."""
        return self._plan.waiting

    # --- of its spans -----------------------------------------------------------------------------

    def worked_beside(self, begin: torch.Event, end: torch.Event) -> None:
        """A side thread gave the device work between these."""
        self._beside.add(begin, end)

    def begin_round(self) -> None:
        """A loop has its batch. Seldom the device is held back before what comes now."""
        is_held = self._plan.is_looked_into and self._gaps.hold()
        if is_held:
            self._queue.append(_Begun(self.clock.mark(), time.perf_counter(), is_held=True))

    def opened(self, span: "_DeviceSpan | None") -> None:
        """A stage has begun in this thread, or ended."""
        self._open, self._thread = span, threading.get_ident()

    def queue(self, item: _Item) -> None:
        """Read it when the device has come so far."""
        self._queue.append(item)
        if isinstance(item, _Queued) and item.stage.name in self._plan.apart:
            item.end.synchronize()
        self.read()

    def _read(self, item: _Queued) -> None:
        stage, found = item.stage, self.clock.read(item.begin, item.end, item.asked_at)
        self._rounds.add(stage, found.since_s, found.lasted_s, found.ended_at)
        duration_s = self._without_side_work(item, found)
        Spans.add(item.into, stage.name, found.began_at, duration_s)
        if stage.is_drained:
            self.drained_s[stage.name] += duration_s
        for name, at, lasted_s in item.within:
            start, stop = max(at, found.began_at), min(at + lasted_s, found.began_at + duration_s)
            Spans.add(item.into, name, start, max(0.0, stop - start))

    def _without_side_work(self, item: _Queued, found: Stretch) -> float:
        """How long a stage lasted; work of side threads before it, or while it waited, is added apart."""
        between_s = 0.0 if found.after is None else self._beside.within_s(found.after, found.since_s)
        worked_s = self._beside.within_s(item.begin, found.lasted_s)
        if item.stage.name in self._plan.waiting:
            self._worked_in_waits_s += worked_s
            duration_s = found.lasted_s - worked_s
            # At its end: the loop waited for this work. Before it began the loop was in no stage.
            Spans.add(item.into, self._plan.worked, found.began_at + duration_s, worked_s + between_s)
            return duration_s
        if between_s:
            Spans.add(self, self._plan.worked, found.began_at - between_s, between_s)
            self._rounds.add_beside(self._plan.worked, between_s)
        return found.lasted_s

    def _begin_round(self, item: _Begun) -> None:
        self.clock.skip_to(item.end)
        self._rounds.begin(item.at, is_held=item.is_held)


class _DeviceSpan(Span):
    __slots__ = ("_asked_at", "_begins_dry", "_event", "_into", "_is_aside", "_on", "within")

    def __init__(self, spans: DeviceSpans, name: str, into: Spans, *, is_aside: bool = False) -> None:
        super().__init__(spans, name)
        self._on, self._into, self._is_aside = spans, into, is_aside
        self.within: list[tuple[str, float, float]] = []

    def __enter__(self) -> None:
        self._asked_at = time.perf_counter()
        self._begins_dry = self.name in self._on.waiting and self._on.clock.is_drained
        self._event = self._on.clock.mark()
        self._on.opened(self)

    def __exit__(self, *_: object) -> None:
        self._on.opened(None)
        is_drained, end = self._on.clock.is_drained, self._on.clock.mark()
        stage = Stage(self.name, time.perf_counter(), is_drained, self._begins_dry, self._is_aside)
        self._on.queue(_Queued(stage, self._event, end, self._asked_at, self.within, self._into))
        if self.name in self._on.waiting and not self._is_aside:
            self._on.begin_round()


class _SideSpan(Span):
    __slots__ = ("_event", "_on")

    def __init__(self, spans: DeviceSpans, name: str) -> None:
        super().__init__(spans, name)
        self._on = spans

    def __enter__(self) -> None:
        self._event = self._on.clock.mark_beside()
        super().__enter__()

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._on.worked_beside(self._event, self._on.clock.mark_beside())


class _Pieces(Spans):
    def __init__(self, spans: DeviceSpans) -> None:
        super().__init__()
        self._on = spans

    def span(self, name: str) -> Span:
        return _DeviceSpan(self._on, name, self)


class _GatheredOnDevice(Gathered):
    def __init__(self, spans: DeviceSpans) -> None:
        super().__init__(spans)
        self._on, self._pieces = spans, _Pieces(spans)

    def __exit__(self, *_: object) -> None:
        self._on.queue(self._pieces)
