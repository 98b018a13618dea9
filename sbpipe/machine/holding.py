"""Holds a device back: it sleeps before its next work, while its host goes on. Knows no stages."""

from collections.abc import Callable
from typing import Any

import torch

_TRIED = 1_000_000
"""Cycles that a device sleeps once, to measure the length of a cycle: a millisecond or less."""


class Holding:
    """Makes a device sleep, in the order of its queue; the host does not wait for it."""

    def __init__(self, device: torch.device, mark: Callable[[], torch.Event]) -> None:
        """`mark` puts an event into the device's queue."""
        self._mark = mark
        self._index = device.index or 0
        self._sleep: Callable[[int], Any] | None = getattr(torch.get_device_module(device), "_sleep", None)
        self._tried: tuple[torch.Event, torch.Event] | None = None
        self._cycles_per_s = 0.0

    def __call__(self, seconds: float) -> bool:
        """Sleep for about so long; returns whether it does. It needs to know the length of a cycle first."""
        if self._sleep is None:
            return False
        if self._tried is None:
            begin = self._mark()
            self._sleep_for(_TRIED)
            self._tried = begin, self._mark()
            return False
        if not self._cycles_per_s:
            begin, end = self._tried
            if not end.query():
                return False
            self._cycles_per_s = 1e3 * _TRIED / max(1e-3, begin.elapsed_time(end))
        self._sleep_for(int(seconds * self._cycles_per_s))
        return True

    def _sleep_for(self, cycles: int) -> None:
        # It has no device argument: the current device sleeps.
        assert self._sleep is not None, "it was asked for"
        with torch.accelerator.device_index(self._index):
            self._sleep(cycles)
