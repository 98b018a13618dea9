"""Spans on an accelerator's own clock: how long the device took for a stage, not how long launching it took.

The host only queues work: its clock sees neither how long a stage takes nor when the device has nothing to
do. So an event is queued where a stage begins and one where it ends, and what lies between them is read when
both have come: a step or so late, and never waited for. Together the stages of a loop are the device's time.
A stage that waits lasts as long as the device has nothing to do in it. One that computes lasts from its first
kernel to its last: where the host launches slower than the device computes, there are gaps, which are
estimated for all that lies between two waits (`gaps.py`). It must not know what the stages do.
"""

import threading
import time
from collections import deque
from collections.abc import Collection
from typing import NamedTuple, TypeAlias

import torch

from sbpipe.machine.gaps import Gaps, Round
from sbpipe.runs.spans import Gathered, Span, Spans, Stages

_MOST_BESIDE = 64
"""Pieces of side threads' work that nobody has asked about yet."""


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


def refusal_to_time(device: torch.device) -> str:
    """Why the events and streams of an accelerator do not tell how long its work takes; "" = they do."""
    try:
        begin, end = (torch.Event(device, enable_timing=True) for _ in range(2))
        # This device's own: without one it would be that of the device that is current.
        stream = torch.accelerator.current_stream(device)
        begin.record(stream)
        end.record(stream)
        end.synchronize()
        begin.elapsed_time(end)
        stream.query()
    # Each backend says in its own way that its events have no time.
    except (RuntimeError, NotImplementedError, AttributeError, TypeError, ValueError) as error:
        return (str(error).strip().splitlines() or [type(error).__name__])[0]
    return ""


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

    name: str
    begin: torch.Event
    end: torch.Event
    asked_at: float
    """When the host queued its beginning: the device cannot have begun before."""
    within: list[tuple[str, float, float]]
    """Name, begin and duration of what the host timed meanwhile."""
    into: Spans
    """Where it is added: to all, or to the pieces of a stage that comes in several."""
    is_drained: bool
    """Whether the device had done it all when the host had queued its last piece."""
    queued_at: float
    """When the host had queued all of it."""
    begins_dry: bool
    """Whether the device had nothing left to do when a stage that waits began."""
    is_aside: bool
    """Whether it waits in the middle of a round."""


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
        self._device = device
        self._plan = plan
        self._beside: deque[tuple[torch.Event, torch.Event]] = deque(maxlen=_MOST_BESIDE)
        """Where work of side threads begins and ends."""
        self._queue: deque[_Item] = deque()
        """What is to be read."""
        self._gaps = Gaps(device)
        self._round: Round | None = None
        """The one that is being read."""
        self._is_cutting = False
        """Whether something that is left out of it was read last."""
        self._worked_in_waits_s = 0.0
        self._free: list[torch.Event] = []
        self._open: _DeviceSpan | None = None
        self._thread = 0
        # The event that was read last, and when it came on the host's clock.
        self._last: torch.Event | None = None
        self._last_at = 0.0

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
        self._round, self._worked_in_waits_s = None, 0.0
        super().clear()
        if self._plan.waiting:
            begin = self.mark()
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
        if self._round is not None and self._round.stages_s:  # no wait has ended it, and none will
            self._gaps.note(self._round)
            self._round = None

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

    def gap_s(self) -> float:
        """Seconds between two waits in which the device had nothing to do, as an estimate."""
        return self._gaps.gap_s

    @property
    def waiting(self) -> Collection[str]:
        """Stages that wait."""
        return self._plan.waiting

    # --- of its spans -----------------------------------------------------------------------------

    def mark(self) -> torch.Event:
        """Put an event into the queue."""
        event = self._free.pop() if self._free else torch.Event(self._device, enable_timing=True)
        event.record(torch.accelerator.current_stream(self._device))
        return event

    @property
    def is_drained(self) -> bool:
        """Whether the device has nothing left to do."""
        return bool(torch.accelerator.current_stream(self._device).query())

    def mark_beside(self) -> torch.Event:
        """The same in a side thread."""
        event = torch.Event(self._device, enable_timing=True)
        event.record(torch.accelerator.current_stream(self._device))
        return event

    def worked_beside(self, begin: torch.Event, end: torch.Event) -> None:
        """A side thread gave the device work between these."""
        self._beside.append((begin, end))

    def begin_round(self) -> None:
        """A loop has its batch. Seldom the device is held back before what comes now."""
        is_held = self._plan.is_looked_into and self._gaps.hold(self.mark)
        if is_held:
            self._queue.append(_Begun(self.mark(), time.perf_counter(), is_held=True))

    def opened(self, span: "_DeviceSpan | None") -> None:
        """A stage has begun in this thread, or ended."""
        self._open, self._thread = span, threading.get_ident()

    def queue(self, item: _Item) -> None:
        """Read it when the device has come so far."""
        self._queue.append(item)
        if isinstance(item, _Queued) and item.name in self._plan.apart:
            item.end.synchronize()
        self.read()

    def _read(self, item: _Queued) -> None:
        duration_s = 1e-3 * item.begin.elapsed_time(item.end)
        begin, since_s, between_s = item.asked_at, 0.0, 0.0
        if self._last is not None:
            # From one event to the next: milliseconds since the start of a long run would be too coarse.
            since_s = 1e-3 * self._last.elapsed_time(item.begin)
            between_s = self._beside_s(self._last, since_s)
            begin = max(begin, self._last_at + since_s)
            self._free.append(self._last)
        # The two clocks may run apart, but it cannot end after now.
        begin = min(begin, time.perf_counter() - duration_s)
        self._last, self._last_at = item.end, begin + duration_s
        self._count(item, since_s, begin, duration_s)
        worked_s = self._beside_s(item.begin, duration_s)
        if item.name in self._plan.waiting:
            duration_s -= worked_s
            self._worked_in_waits_s += worked_s
            # At its end: the loop waited for this work. Before it began the loop was in no stage.
            Spans.add(item.into, self._plan.worked, begin + duration_s, worked_s + between_s)
        elif between_s:
            Spans.add(self, self._plan.worked, begin - between_s, between_s)
            if self._round is not None:
                self._round.stages_s[self._plan.worked] += between_s
        self._free.append(item.begin)
        Spans.add(item.into, item.name, begin, duration_s)
        if item.is_drained:
            self.drained_s[item.name] += duration_s
        for name, at, lasted_s in item.within:
            start, stop = max(at, begin), min(at + lasted_s, begin + duration_s)
            Spans.add(item.into, name, start, max(0.0, stop - start))

    def _count(self, item: _Queued, since_s: float, begin: float, duration_s: float) -> None:
        """Add a stage to the round that it is part of; one that waits ends it."""
        if item.name in self._plan.waiting and not item.is_aside:
            if self._round is not None and self._round.stages_s:
                # A device that was held back, and has nothing to do by now, was waited for.
                is_waited_for = self._round.is_held and item.begins_dry
                self._round.lasted_s += 0.0 if is_waited_for else since_s
                self._gaps.note(self._round)
            self._round, self._is_cutting = Round(item.queued_at), False
        elif self._round is not None:
            self._round.lasted_s += since_s
            if item.is_aside or item.name in self._plan.left_out:
                self._is_cutting = True
            else:
                self._round.is_cut |= self._is_cutting
                self._round.lasted_s += duration_s
                self._round.stages_s[item.name] += duration_s
                self._round.is_dry |= item.is_drained
                self._round.launching_s = item.queued_at - self._round.begun_at
                self._round.behind_s = begin + duration_s - item.queued_at

    def _begin_round(self, item: _Begun) -> None:
        """From here on, not from the end of the stage that waited: the device may have slept since then."""
        now = time.perf_counter()
        if self._last is not None:
            self._last_at = min(now, self._last_at + 1e-3 * self._last.elapsed_time(item.end))
            self._free.append(self._last)
        else:
            self._last_at = now
        self._last = item.end
        self._round, self._is_cutting = Round(item.at, is_held=item.is_held), False

    def _beside_s(self, begin: torch.Event, lasted_s: float) -> float:
        """How long the device worked for side threads in so many seconds from an event on."""
        found_ms, lasted_ms = 0.0, 1e3 * lasted_s
        while self._beside and self._beside[0][1].query():
            first, last = self._beside[0]
            stop_ms = begin.elapsed_time(last)
            found_ms += max(0.0, min(stop_ms, lasted_ms) - max(0.0, begin.elapsed_time(first)))
            if stop_ms > lasted_ms:
                break  # the rest of it may lie in the next such stage
            self._beside.popleft()
        return min(lasted_s, 1e-3 * found_ms)


class _DeviceSpan(Span):
    __slots__ = ("_asked_at", "_begins_dry", "_event", "_into", "_is_aside", "_on", "within")

    def __init__(self, spans: DeviceSpans, name: str, into: Spans, *, is_aside: bool = False) -> None:
        super().__init__(spans, name)
        self._on, self._into, self._is_aside = spans, into, is_aside
        self.within: list[tuple[str, float, float]] = []

    def __enter__(self) -> None:
        self._asked_at = time.perf_counter()
        self._begins_dry = self.name in self._on.waiting and self._on.is_drained
        self._event = self._on.mark()
        self._on.opened(self)

    def __exit__(self, *_: object) -> None:
        self._on.opened(None)
        is_drained = self._on.is_drained
        end = self._on.mark()
        self._on.queue(
            _Queued(
                self.name,
                self._event,
                end,
                self._asked_at,
                self.within,
                self._into,
                is_drained,
                time.perf_counter(),
                self._begins_dry,
                self._is_aside,
            )
        )
        if self.name in self._on.waiting and not self._is_aside:
            self._on.begin_round()


class _SideSpan(Span):
    __slots__ = ("_event", "_on")

    def __init__(self, spans: DeviceSpans, name: str) -> None:
        super().__init__(spans, name)
        self._on = spans

    def __enter__(self) -> None:
        self._event = self._on.mark_beside()
        super().__enter__()

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._on.worked_beside(self._event, self._on.mark_beside())


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
