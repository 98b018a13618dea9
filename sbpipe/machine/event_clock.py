"""Events of an accelerator, and where they lie on the host's clock. It must not know what is timed."""

import time
from typing import NamedTuple

import torch


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


class Stretch(NamedTuple):
    """What lies between two events, when the device has passed both."""

    after: torch.Event | None
    """The end of the one before; to be asked of until the next is read."""
    since_s: float
    """From there to its beginning."""
    began_at: float
    """On the host's clock."""
    lasted_s: float

    @property
    def ended_at(self) -> float:
        """On the host's clock."""
        return self.began_at + self.lasted_s


class EventClock:
    """Puts events into a device's queue, and reads them in that order: from each to the next.

    Milliseconds since the start of a long run would be too coarse.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._free: list[torch.Event] = []
        self._last: torch.Event | None = None
        """The event that was read last."""
        self._last_at = 0.0
        """When it came, on the host's clock."""

    def mark(self) -> torch.Event:
        """Put an event into the queue, in the thread that reads them."""
        event = self._free.pop() if self._free else torch.Event(self._device, enable_timing=True)
        event.record(torch.accelerator.current_stream(self._device))
        return event

    def mark_beside(self) -> torch.Event:
        """The same in another thread."""
        event = torch.Event(self._device, enable_timing=True)
        event.record(torch.accelerator.current_stream(self._device))
        return event

    @property
    def is_drained(self) -> bool:
        """Whether the device has nothing left to do."""
        return bool(torch.accelerator.current_stream(self._device).query())

    def read(self, begin: torch.Event, end: torch.Event, asked_at: float) -> Stretch:
        """Go on to a stretch that the host asked for at some time: the device cannot have begun before."""
        lasted_s, since_s, began_at = 1e-3 * begin.elapsed_time(end), 0.0, asked_at
        if self._last is not None:
            since_s = 1e-3 * self._last.elapsed_time(begin)
            began_at = max(began_at, self._last_at + since_s)
            self._free.append(self._last)
        # The two clocks may run apart, but it cannot end after now.
        began_at = min(began_at, time.perf_counter() - lasted_s)
        stretch = Stretch(self._last, since_s, began_at, lasted_s)
        self._free.append(begin)
        self._last, self._last_at = end, stretch.ended_at
        return stretch

    def skip_to(self, event: torch.Event) -> None:
        """Go on to an event; what lies before it is nobody's."""
        now = time.perf_counter()
        if self._last is not None:
            now = min(now, self._last_at + 1e-3 * self._last.elapsed_time(event))
            self._free.append(self._last)
        self._last, self._last_at = event, now
