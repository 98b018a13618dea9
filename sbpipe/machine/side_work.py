"""Work that side threads give a device: when it runs, and how much of it lies in a given stretch."""

from collections import deque

import torch

_MOST = 64
"""The most pieces that are kept until they are asked for."""


class SideWork:
    """Pieces of such work, in the order of queueing; written by one thread, read by another."""

    def __init__(self) -> None:
        self._pieces: deque[tuple[torch.Event, torch.Event]] = deque(maxlen=_MOST)

    def add(self, begin: torch.Event, end: torch.Event) -> None:
        """A thread gave the device work between these events."""
        self._pieces.append((begin, end))

    def within_s(self, begin: torch.Event, lasted_s: float) -> float:
        """How long the device did such work in `lasted_s` seconds after an event; call it in order of time.

        A piece lasts from its first kernel to its last, gaps included.
        """
        found_ms, lasted_ms = 0.0, 1e3 * lasted_s
        while self._pieces and self._pieces[0][1].query():
            first, last = self._pieces[0]
            stop_ms = begin.elapsed_time(last)
            found_ms += max(0.0, min(stop_ms, lasted_ms) - max(0.0, begin.elapsed_time(first)))
            if stop_ms > lasted_ms:
                break  # the rest of it may lie in the next stretch
            self._pieces.popleft()
        return min(lasted_s, 1e-3 * found_ms)
