"""Spans: how long each named stage of a role took. Does not know what the stages do."""

import threading
import time
from collections import defaultdict
from collections.abc import Collection

Stages = dict[str, list[float]]
"""For each stage: how often it ran, and its total seconds."""

_MAX_RECENT = 2 * 64
"""Numbers kept per stage and event. It bounds the memory of a stage that never reports; a picture needs no
more.
"""


class Spans:
    """How long each stage took: totals of the run, and every (start, duration) since the last event."""

    def __init__(self) -> None:
        self.total_s: defaultdict[str, float] = defaultdict(float)
        self.count: defaultdict[str, int] = defaultdict(int)
        self.drained_s: defaultdict[str, float] = defaultdict(float)
        """The part of the totals in stages that the device finished as soon as the host had launched them."""
        self.keeps_recent = True
        """Whether each start and duration is kept until it is taken; totals always are."""
        self._recent: dict[str, list[float]] = {}
        self._lock = threading.Lock()  # side threads add while the loop takes

    def span(self, name: str) -> "Span":
        """Time one stage."""
        return Span(self, name)

    def aside(self, name: str) -> "Span":
        """Time a wait that is not for a batch: on a device such a wait ends no round of stages."""
        return self.span(name)

    def gathered(self) -> "Gathered":
        """Time stages that run in several pieces; the pieces of a stage count as one span."""
        return Gathered(self)

    def cpu_span(self, name: str) -> "_CpuSpan":
        """Time one stage of a side thread by its processor time: what it costs the loop.

        The clock would also count how long the thread was kept waiting for a core or a lock.
        """
        return _CpuSpan(self, name)

    def add(self, name: str, begin: float, duration_s: float) -> None:
        """Record a stage that other code timed."""
        with self._lock:
            self.total_s[name] += duration_s
            self.count[name] += 1
            if self.keeps_recent:
                recent = self._recent.setdefault(name, [])
                if len(recent) < _MAX_RECENT:
                    recent += (begin, duration_s)

    def worked_s(self, work: Collection[str]) -> float:
        """Seconds of work: the total of these stages."""
        return sum(self.total_s[name] for name in work)

    def worked_error_s(self) -> float:
        """The error of `worked_s`: a standard error, or a bound; 0 where it is measured exactly."""
        return 0.0

    def gap_s(self) -> float:
        """Seconds in which a device had no work because its host was slower; 0 where this is unknown."""
        return 0.0

    def clear(self) -> None:
        """Count from here."""
        self.total_s.clear()
        self.count.clear()
        self.drained_s.clear()

    def take_recent(self) -> dict[str, list[float]]:
        """Start, duration, start, duration, ... of each stage since the last call, on the monotonic clock."""
        with self._lock:
            recent, self._recent = self._recent, {}
        return recent

    def totals(self) -> Stages:
        """The totals of every stage so far."""
        with self._lock:
            return {name: [self.count[name], seconds] for name, seconds in self.total_s.items()}

    def settle(self) -> None:
        """Wait until the totals hold every stage that has begun."""

    def mean_ms(self, name: str) -> float | None:
        """Mean duration of a stage, None if it never ran."""
        return 1e3 * self.total_s[name] / self.count[name] if self.count[name] else None


def rounded(recent: dict[str, list[float]]) -> dict[str, list[float]]:
    """Rounded to the microsecond, for writing."""
    return {name: [round(number, 6) for number in numbers] for name, numbers in recent.items()}


def stages_since(before: Stages, now: Stages) -> Stages:
    """The difference of two totals; stages that did not run in between are left out."""
    pairs = ((name, before.get(name, [0, 0.0]), told) for name, told in now.items())
    return {
        name: [told[0] - then[0], round(told[1] - then[1], 6)]
        for name, then, told in pairs
        if told[0] > then[0]
    }


def stages_together(some: Stages, more: Stages) -> Stages:
    """The sum of two totals."""
    pairs = ((name, some.get(name, [0, 0.0]), more.get(name, [0, 0.0])) for name in (some | more))
    return {name: [one[0] + two[0], one[1] + two[1]] for name, one, two in pairs}


# Classes rather than generators: a loop enters a dozen spans per step, and a class costs a third.
class Span:
    """One stage that is running; it may be renamed until it ends."""

    __slots__ = ("_begin", "_spans", "name")

    def __init__(self, spans: Spans, name: str) -> None:
        self._spans, self.name = spans, name

    def __enter__(self) -> None:
        self._begin = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._spans.add(self.name, self._begin, time.perf_counter() - self._begin)


class Gathered:
    """The pieces of some stages. Each stage becomes one span, which begins with its first piece."""

    def __init__(self, spans: Spans) -> None:
        self._spans = spans
        self._pieces = Spans()

    def __enter__(self) -> Spans:
        return self._pieces

    def __exit__(self, *_: object) -> None:
        for name, recent in self._pieces.take_recent().items():
            self._spans.add(name, recent[0], self._pieces.total_s[name])


class _CpuSpan:
    __slots__ = ("_begin", "_cpu", "_name", "_spans")

    def __init__(self, spans: Spans, name: str) -> None:
        self._spans, self._name = spans, name

    def __enter__(self) -> None:
        self._begin, self._cpu = time.perf_counter(), time.thread_time()

    def __exit__(self, *_: object) -> None:
        self._spans.add(self._name, self._begin, time.thread_time() - self._cpu)
