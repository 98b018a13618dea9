"""Events of an accelerator, and their times on the host's clock. It must not know what is timed."""

import time
from typing import NamedTuple

import torch


def refusal_to_time(device: torch.device) -> str:
    """Why the events and streams of an accelerator do not tell how long its work takes; "" = they do."""
    try:
        begin, end = (torch.Event(device, enable_timing=True) for _ in range(2))
        # This device's stream: by default it would be the current device's.
        stream = torch.accelerator.current_stream(device)
        begin.record(stream)
        end.record(stream)
        end.synchronize()
        begin.elapsed_time(end)
        stream.query()
    # A backend whose events have no time raises one of these.
    except (RuntimeError, NotImplementedError, AttributeError, TypeError, ValueError) as error:
        return (str(error).strip().splitlines() or [type(error).__name__])[0]
    return ""


class Stretch(NamedTuple):
    """The time between two events that the device has passed."""

    after: torch.Event | None
    """The end of the previous stretch; valid until the next one is read."""
    since_s: float
    """The time from there to the beginning of this one."""
    began_at: float
    """On the host's clock."""
    lasted_s: float

    @property
    def ended_at(self) -> float:
        """On the host's clock."""
        return self.began_at + self.lasted_s


class EventClock:
    """Puts events into a device's queue, and reads their distances in that order, from each to the next.

    Counted from the start of a long run, milliseconds in single precision would be too coarse.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._free: list[torch.Event] = []
        self._last: torch.Event | None = None
        """The event that was read last."""
        self._last_at = 0.0
        """The time of that event on the host's clock."""

    def mark(self) -> torch.Event:
        """Put an event into the queue; only for the thread that reads events."""
        event = self._free.pop() if self._free else torch.Event(self._device, enable_timing=True)
        event.record(torch.accelerator.current_stream(self._device))
        return event

    def mark_beside(self) -> torch.Event:
        """The same for other threads."""
        event = torch.Event(self._device, enable_timing=True)
        event.record(torch.accelerator.current_stream(self._device))
        return event

    @property
    def is_drained(self) -> bool:
        """Whether the device has nothing left to do."""
        return bool(torch.accelerator.current_stream(self._device).query())

    def read(self, begin: torch.Event, end: torch.Event, asked_at: float) -> Stretch:
        """Read the next stretch, which the device cannot have begun before the host asked, at `asked_at`."""
        lasted_s, since_s, began_at = 1e-3 * begin.elapsed_time(end), 0.0, asked_at
        if self._last is not None:
            since_s = 1e-3 * self._last.elapsed_time(begin)
            began_at = max(began_at, self._last_at + since_s)
            self._free.append(self._last)
        # The two clocks may drift apart, but the stretch cannot end after now.
        began_at = min(began_at, time.perf_counter() - lasted_s)
        stretch = Stretch(self._last, since_s, began_at, lasted_s)
        self._free.append(begin)
        self._last, self._last_at = end, stretch.ended_at
        return stretch

    def skip_to(self, event: torch.Event) -> None:
        """Go on to an event; the time before it belongs to no stretch."""
        now = time.perf_counter()
        if self._last is not None:
            now = min(now, self._last_at + 1e-3 * self._last.elapsed_time(event))
            self._free.append(self._last)
        self._last, self._last_at = event, now
