"""How long a device computes inside a stage, where the host launches slower than it does: an estimate.

An event before a stage and one behind it say how long it took, gaps between two kernels included. So before
one stage of many the device is held back, for as long as its host will need to launch all of it. Then it
computes the stage in one go, and how long that takes is what every stage of this name computes; the rest were
gaps. Nothing is computed otherwise, and nobody waits. It must not know what the stages do.
"""

import statistics
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from typing import Any

import torch

_FIRST = 4
"""Stages of a name before the first is looked into: those that warm up are another matter."""
_GROWTH, _LONGEST = 2, 1024
"""How much further each look is than the last one, and the most stages between two. The device loses about as
much as the stage takes.
"""
_HOLD = 2.0
"""For how many times its last duration a device is held back: launching a stage may take longer this time."""
_TRIED = 1_000_000
"""Cycles that a device sleeps to find out how long one is: a millisecond or less."""
_LONGEST_HOLD_S = 2.0
_REMEMBERED = 5
_FOLLOWS = 1 / 4
"""Of a stage: a device that ends so soon after its host has followed it. One that sets the pace is
behind by most of a step.
"""


class Holding:
    """Lets a device sleep, in its own order of work; nobody waits for that."""

    def __init__(self, device: torch.device) -> None:
        self._sleep: Callable[[int], Any] | None = getattr(torch.get_device_module(device), "_sleep", None)
        self._tried: tuple[torch.Event, torch.Event] | None = None
        self._cycles_per_s = 0.0

    def __call__(self, seconds: float, mark: Callable[[], torch.Event]) -> bool:
        """Sleep for about so long; whether it does. It cannot before it knows how long a cycle is."""
        if self._sleep is None:
            return False
        if self._tried is None:
            begin = mark()
            self._sleep(_TRIED)
            self._tried = begin, mark()
            return False
        if not self._cycles_per_s:
            begin, end = self._tried
            if not end.query():
                return False
            self._cycles_per_s = 1e3 * _TRIED / max(1e-3, begin.elapsed_time(end))
        self._sleep(int(min(_LONGEST_HOLD_S, seconds) * self._cycles_per_s))
        return True


class Gaps:
    """Which stages are looked into, and what that says of all others of their name."""

    def __init__(self, device: torch.device) -> None:
        self._hold = Holding(device)
        self._seen: Counter[str] = Counter()
        self._next: defaultdict[str, int] = defaultdict(lambda: _FIRST)
        self._last_s: dict[str, float] = {}
        self._computed: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=_REMEMBERED))
        self._paced_s: defaultdict[str, float] = defaultdict(float)
        self._num_paced: Counter[str] = Counter()

    def hold(self, name: str, mark: Callable[[], torch.Event]) -> bool:
        """Hold the device back before a stage that is due: seldom, and only where the host sets the pace."""
        self._seen[name] += 1
        if self._seen[name] < self._next[name] or name not in self._last_s:
            return False
        if not self._hold(_HOLD * self._last_s[name], mark):
            return False
        self._next[name] += min(_LONGEST, (_GROWTH - 1) * self._seen[name])
        return True

    def note(self, name: str, duration_s: float, behind_s: float, *, is_held: bool) -> None:
        """A stage has ended on the device, so long after its host had queued all of it."""
        if is_held and behind_s > 0.0:
            self._computed[name].append(duration_s)
        elif behind_s < _FOLLOWS * duration_s:
            self._last_s[name] = duration_s
            self._paced_s[name] += duration_s
            self._num_paced[name] += 1
        else:
            self._last_s.pop(name, None)  # the device sets the pace: there is nothing to find out

    def of(self, name: str) -> float:
        """Seconds without a kernel in all stages of this name, as far as is known."""
        if not self._computed[name]:
            return 0.0
        each = statistics.median(self._computed[name])
        return max(0.0, self._paced_s[name] - each * self._num_paced[name])

    def clear(self) -> None:
        """Count from here; what a stage computes is still known."""
        self._paced_s.clear()
        self._num_paced.clear()
