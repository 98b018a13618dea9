"""Spans on an accelerator's own clock: how long the device took for a stage, not how long launching it took.

The host only queues work, so its clock tells neither how long a stage takes nor when the device is idle. An
event is queued where a stage begins, and one where it ends. The time between them is read when both have
come, about a step late; nothing waits for it. Together the stages of a loop are the device's time. A waiting
stage lasts as long as the device is idle in it. A computing stage lasts from its first kernel to its last:
where the host launches slower than the device computes, it has gaps, which are estimated (`gaps.py`) for
everything between two waits (`rounds.py`). It must not know what the stages do.
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
    """The stages that a device times; all are in one thread, the loop's."""

    timed: Collection[str]
    waiting: Collection[str] = ()
    """Those of `timed` in which only other threads give the device work."""
    worked: str = ""
    """The stage that such work counts as."""
    apart: Collection[str] = ()
    """Those of `timed` at whose end the host has waited for the device anyway: they are read at once."""
    side: Collection[str] = ()
    """Stages of another thread, timed by the host; their work on the device does not count as waiting."""
    left_out: Collection[str] = ()
    """Those of `timed` that belong to no round (the time between two waits)."""
    is_looked_into: bool = False
    """Whether gaps are estimated, for which the device is held back before one round in many."""


def spans_on(device: torch.device, plan: Plan) -> tuple[Spans, str]:
    """Spans that time these stages on the device, and a note for the user if they cannot ("" = they can)."""
    if device.type == "cpu":
        return Spans(), ""
    if reason := refusal_to_time(device):
        return Spans(), (
            f"{device} does not tell how long its work takes ({reason}): busy and idle are of the host, "
            "which only launches it"
        )
    return DeviceSpans(device, plan), ""


class _Queued(NamedTuple):
    """A stage whose end the device may not have reached yet."""

    stage: Stage
    begin: torch.Event
    end: torch.Event
    asked_at: float
    """When the host queued its beginning; the device cannot have begun earlier."""
    within: list[tuple[str, float, float]]
    """Name, begin and duration of stages that the host timed inside it."""
    into: Spans
    """The spans it is added to: all spans, or the pieces of a stage."""


class _Begun(NamedTuple):
    """The beginning of a round: its event on the device, and the host's time."""

    end: torch.Event
    at: float
    is_held: bool


_Item: TypeAlias = _Queued | _Begun | Spans
"""Spans stand for the pieces of stages, once all of them are queued."""


class DeviceSpans(Spans):
    """Spans that time the planned stages by the device, and other stages by the host."""

    def __init__(self, device: torch.device, plan: Plan) -> None:
        super().__init__()
        self.clock = EventClock(device)
        self._plan = plan
        self._beside = SideWork()
        self._queue: deque[_Item] = deque()
        """Items that are still to be read."""
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
        """Time a wait that is not for a batch: no round ends with it, and none is held back after it."""
        return _DeviceSpan(self, name, self, is_aside=True) if name in self._plan.timed else self.span(name)

    def gathered(self) -> Gathered:
        """Time stages that run in several pieces; the pieces of a stage count as one span."""
        return _GatheredOnDevice(self)

    def add(self, name: str, begin: float, duration_s: float) -> None:
        """Record a stage that the host timed; inside a device's stage, only its overlap with it counts."""
        if self._open is not None and threading.get_ident() == self._thread:
            self._open.within.append((name, begin, duration_s))
        else:
            super().add(name, begin, duration_s)

    def clear(self) -> None:
        """Count from here, once the device has finished earlier work."""
        self._queue.clear()
        self._gaps.clear()
        self._rounds.clear()
        self._worked_in_waits_s = 0.0
        super().clear()
        if self._plan.waiting:
            begin = self.clock.mark()
            begin.synchronize()  # once in a run: earlier work must not be counted
            self._queue.append(_Begun(begin, time.perf_counter(), is_held=False))

    def totals(self) -> Stages:
        """The totals of every stage that the device has finished so far."""
        self.read()
        return super().totals()

    def take_recent(self) -> dict[str, list[float]]:
        """Start, duration, ... of each stage that the device has finished since the last call."""
        self.read()
        return super().take_recent()

    def settle(self) -> None:
        """Wait until the device has finished every stage."""
        last = next((item for item in reversed(self._queue) if not isinstance(item, Spans)), None)
        if last is not None:
            last.end.synchronize()
        self.read()
        self._rounds.end()

    def read(self) -> None:
        """Add the stages that the device has finished; never waits."""
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
        """Seconds in which the device computed: between waits, and for other threads during waits."""
        if not self._plan.waiting:
            return super().worked_s(work)
        return self._gaps.worked_s(work) + self._worked_in_waits_s

    def worked_error_s(self) -> float:
        """The error of `worked_s`."""
        return self._gaps.error_s if self._plan.waiting else 0.0

    def gap_s(self) -> float:
        """Seconds between waits in which the device had nothing to do; an estimate."""
        return self._gaps.gap_s

    @property
    def waiting(self) -> Collection[str]:
        """Stages that wait."""
        return self._plan.waiting

    # --- of its spans -----------------------------------------------------------------------------

    def worked_beside(self, begin: torch.Event, end: torch.Event) -> None:
        """A side thread gave the device work between these events."""
        self._beside.add(begin, end)

    def begin_round(self) -> None:
        """The loop has its batch. Now and then the device is held back here."""
        is_held = self._plan.is_looked_into and self._gaps.hold()
        if is_held:
            self._queue.append(_Begun(self.clock.mark(), time.perf_counter(), is_held=True))

    def opened(self, span: "_DeviceSpan | None") -> None:
        """A stage has begun in this thread; None = it has ended."""
        self._open, self._thread = span, threading.get_ident()

    def queue(self, item: _Item) -> None:
        """Queue an item, to be read when the device has passed it."""
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
        """How long a stage lasted; side threads' work before it, or during its wait, is added separately."""
        between_s = 0.0 if found.after is None else self._beside.within_s(found.after, found.since_s)
        worked_s = self._beside.within_s(item.begin, found.lasted_s)
        if item.stage.name in self._plan.waiting:
            self._worked_in_waits_s += worked_s
            duration_s = found.lasted_s - worked_s
            # Put at its end, since the loop waited for this work; before the stage the loop was in none.
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
