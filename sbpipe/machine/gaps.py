"""How much of a loop's time a device computes, where its host launches slower than it does: an estimate.

Events say when a round of the loop (what lies between two waits for a batch) began and ended on the device,
gaps between two kernels included, and nothing tells how long those were. So before one round of many the
device is held back, for as long as its host will need to launch all of it. Then it computes the round in one
go, with what other threads gave it meanwhile, and how long that takes is what every round computes; the rest
were gaps: inside stages, between them, in those that only the host works in. Nothing is computed otherwise,
and nobody waits. What it costs is bounded: half as long again as a round takes to launch, at last once in
1,024 rounds, so less than two rounds in a thousand; and a round that takes long to launch is never looked
into. It is done in a loop of our own only (`Plan.is_looked_into`): the device of a user's loop is not made
to sleep for a figure. It must not know what the stages do.
"""

import statistics
from collections import defaultdict, deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import torch

_FIRST = 4
"""Rounds before the first is looked into: those that warm up are another matter."""
_GROWTH, _LONGEST = 2, 1024
"""How much further each look is than the last one, and the most rounds between two."""
_HOLD = 1.5
"""For how many times the launching of the last round a device is held back: it may take longer this time."""
_TRIED = 1_000_000
"""Cycles that a device sleeps to find out how long one is: a millisecond or less."""
_LONGEST_HOLD_S = 0.25
"""A round that would need a longer one is not looked into: cut short, it would show gaps as work."""
_REMEMBERED = 5
_VAIN = 3
"""Looks in a row that show nothing, since the host waits for the device in every round: no more are taken."""
_FOLLOWS = 1 / 4
"""Of a round: a device that ends so soon after its host has followed it. One that sets the pace is
behind by most of a step.
"""


class Holding:
    """Lets a device sleep, in its own order of work; nobody waits for that."""

    def __init__(self, device: torch.device) -> None:
        self._index = device.index or 0
        self._sleep: Callable[[int], Any] | None = getattr(torch.get_device_module(device), "_sleep", None)
        self._tried: tuple[torch.Event, torch.Event] | None = None
        self._cycles_per_s = 0.0

    def __call__(self, seconds: float, mark: Callable[[], torch.Event]) -> bool:
        """Sleep for about so long; whether it does. It cannot before it knows how long a cycle is."""
        if self._sleep is None:
            return False
        if self._tried is None:
            begin = mark()
            self._sleep_for(_TRIED)
            self._tried = begin, mark()
            return False
        if not self._cycles_per_s:
            begin, end = self._tried
            if not end.query():
                return False
            self._cycles_per_s = 1e3 * _TRIED / max(1e-3, begin.elapsed_time(end))
        self._sleep_for(int(seconds * self._cycles_per_s))
        return True

    def _sleep_for(self, cycles: int) -> None:
        # It takes no device: it is the one that is current that sleeps.
        assert self._sleep is not None, "it was asked for"
        with torch.accelerator.device_index(self._index):
            self._sleep(cycles)


@dataclass
class Round:
    """What a loop does between two waits for a batch, by the device's clock; evaluations are left out."""

    begun_at: float
    """When the host began to launch it."""
    is_held: bool = False
    """Whether the device was held back before it."""
    is_dry: bool = False
    """Whether the device had nothing left to do at the end of a stage."""
    is_cut: bool = False
    """Whether what is left out lay in the middle of it: it does not tell who sets the pace, for the host
    waited for the device in there.
    """
    launching_s: float = 0.0
    """What the host took until it had launched the last stage."""
    behind_s: float = 0.0
    """How much later the device ended it."""
    lasted_s: float = 0.0
    """What the device took, from where the loop had its batch to where it asked for the next one."""
    stages_s: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Of that, by stage."""


class Gaps:
    """Which rounds are looked into, and what that says of all others."""

    def __init__(self, device: torch.device) -> None:
        self._hold = Holding(device)
        self._seen, self._next = 0, _FIRST
        self._num_vain = 0
        self._launching_s: float | None = None
        """Of the last round, where the host set the pace."""
        self._computed: deque[float] = deque(maxlen=_REMEMBERED)
        self.clear()

    def clear(self) -> None:
        """Count from here; what a round computes is still known."""
        self._exact_s = self._paced_s = 0.0
        self._num_paced = 0
        self._stages_s: defaultdict[str, float] = defaultdict(float)

    def hold(self, mark: Callable[[], torch.Event]) -> bool:
        """Hold the device back before a round that is due: seldom, and only where the host sets the pace."""
        self._seen += 1
        if self._seen < self._next or self._launching_s is None or self._num_vain == _VAIN:
            return False
        wanted_s = _HOLD * self._launching_s
        if wanted_s > _LONGEST_HOLD_S or not self._hold(wanted_s, mark):
            return False
        self._next += min(_LONGEST, (_GROWTH - 1) * self._seen)
        return True

    def note(self, round_: Round) -> None:
        """A round has ended on the device."""
        if round_.is_cut:
            is_exact = self._launching_s is None  # counted as those before it are
        elif round_.is_held:
            # One that ran dry was not computed in one go.
            is_exact = not round_.is_dry and round_.behind_s > 0.0
            self._num_vain = 0 if is_exact else self._num_vain + 1
            if is_exact:
                self._computed.append(round_.lasted_s)
        else:
            # The device sets the pace where it is behind: it computes all the time.
            is_exact = not round_.is_dry and round_.behind_s >= _FOLLOWS * round_.lasted_s
            self._launching_s = None if is_exact else round_.launching_s
        if is_exact:
            self._exact_s += round_.lasted_s
            return
        self._paced_s += round_.lasted_s
        self._num_paced += 1
        for name, lasted_s in round_.stages_s.items():
            self._stages_s[name] += lasted_s

    def worked_s(self, work: Collection[str]) -> float:
        """Seconds in which the device computed; until gaps are known, those of these stages instead."""
        if not self._computed:
            return self._exact_s + sum(self._stages_s[name] for name in work)
        each = statistics.median(self._computed)
        return self._exact_s + min(self._paced_s, each * self._num_paced)

    @property
    def gap_s(self) -> float:
        """Seconds between kernels in all rounds, as far as is known."""
        if not self._computed:
            return 0.0
        return max(0.0, self._paced_s - statistics.median(self._computed) * self._num_paced)
