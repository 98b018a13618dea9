"""How long passes take on an accelerator, by its own events: read when all have completed, without a wait.

It must not know models, precisions or leases.
"""

from collections.abc import Callable, Sequence

import torch


class Laps:
    """Times several ways to score, in turn, and takes the fastest pass of each."""

    def __init__(self, device: torch.device, ways: Sequence[Callable[[], object]], times: int) -> None:
        """Start `times` passes of each, after a warm-up pass."""
        self._device, self._num_ways = device, len(ways)
        self._events = [self._mark()]
        for _ in range(1 + times):
            for way in ways:
                way()
                self._events.append(self._mark())

    def _mark(self) -> torch.Event:
        event = torch.Event(self._device, enable_timing=True)
        event.record(torch.accelerator.current_stream(self._device))
        return event

    @property
    def are_over(self) -> bool:
        """Whether the device has completed all passes."""
        return bool(self._events[-1].query())

    def fastest_s(self) -> list[float]:
        """The fastest pass of each way, in seconds."""
        pairs = zip(self._events, self._events[1:], strict=False)
        lasted_s = [max(1e-9, 1e-3 * begin.elapsed_time(end)) for begin, end in pairs][self._num_ways :]
        return [min(lasted_s[k :: self._num_ways]) for k in range(self._num_ways)]
