"""How much of a loop's time a device computes, where its host launches slower than it does: an estimate.

Events say when a round of the loop began and ended on the device, gaps between two kernels included, and
nothing tells how long those were. So before one round of many the device is held back, for as long as its
host will need to launch all of it. Then it computes the round in one go, with what other threads gave it
meanwhile, and how long that takes is what rounds near it compute; the rest were gaps: inside stages, between
them, in those that only the host works in. Nothing is computed otherwise.

What a look costs is in proportion to a round, however long one is: the device comes to its end a round later
than it would have, and a loop that reads its losses a step late waits for part of that. Looks lie further
and further apart, at last less than one in a thousand rounds. They are taken in a loop of our own only
(`Plan.is_looked_into`): the device of a user's loop is not made to sleep for a figure. It must not know what
the stages do.
"""

import statistics
from collections import defaultdict, deque
from collections.abc import Callable, Collection

from sbpipe.machine.looks import Looks
from sbpipe.machine.rounds import Round

_FIRST = 4
"""Rounds before the first is looked into: those that warm up are another matter."""
_REMEMBERED, _USUAL = 8, 4.0
"""Rounds whose launching is remembered, and what is taken for unusual: so many times the median."""
_HOLD = 1.5
"""How much longer than for the slowest of them a device is held back. A hold that is too short for slow
rounds would leave them out, and they may compute more.
"""
_AGAIN = 2.0
"""How many times as long the next round is held back, where that was too short."""
_NEAR, _FAR, _VAIN = 1.5, 2.0, 4.0
"""How many times as many rounds have gone by at each look as at the one before: until enough is known, after
that, and where a look shows nothing.
"""
_FEW, _ENOUGH = 4, 0.02
"""What is enough: so many looks, and such a standard error, as a share of what was computed."""
_LONGEST = 1021
"""The most rounds between two looks: a prime, so that what is done in every n-th round is not always met."""
_FOLLOWS = 1 / 4
"""Of a round: a device that ends so soon after its host has followed it. One that sets the pace is
behind by most of a step.
"""


class Gaps:
    """Which rounds are looked into, and what that says of all others."""

    def __init__(self, hold: Callable[[float], bool]) -> None:
        """`hold` lets the device sleep for so many seconds before what comes next; whether it does."""
        self._hold = hold
        self._seen, self._next = 0, _FIRST
        self._factor, self._was_vain = _HOLD, False
        self._launchings: deque[float] = deque(maxlen=_REMEMBERED)
        self._host_sets_pace = False
        """In the last round."""
        self.clear()

    def clear(self) -> None:
        """Count from here."""
        self._exact_s = self._paced_s = 0.0
        self._looks = Looks()
        self._stages_s: defaultdict[str, float] = defaultdict(float)

    def hold(self) -> bool:
        """Hold the device back before a round that is due: seldom, and only where the host sets the pace."""
        self._seen += 1
        if self._seen < self._next or not self._host_sets_pace:
            return False
        slowest_s = min(max(self._launchings), _USUAL * statistics.median(self._launchings))
        if not self._hold(self._factor * slowest_s):
            return False
        is_enough = self._looks.count >= _FEW and self._looks.error_s <= _ENOUGH * self._looks.total_s
        self._plan_next(_FAR if is_enough else _NEAR)
        return True

    def _plan_next(self, growth: float) -> None:
        self._next = self._seen + min(_LONGEST, 1 + int((growth - 1) * self._seen))

    def note(self, round_: Round) -> None:
        """A round has ended on the device."""
        if round_.is_cut:
            is_exact = not self._host_sets_pace  # counted as those before it are
        elif round_.is_held:
            # One that ran dry was not computed in one go.
            is_exact = not round_.is_dry and round_.behind_s > 0.0
            self._note_look(round_, is_whole=is_exact)
        else:
            # The device sets the pace where it is behind: it computes all the time.
            is_exact = not round_.is_dry and round_.behind_s >= _FOLLOWS * round_.lasted_s
            self._host_sets_pace = not is_exact
            if not is_exact:
                self._launchings.append(round_.launching_s)
        if is_exact:
            self._exact_s += round_.lasted_s
            return
        self._looks.skip()
        self._paced_s += round_.lasted_s
        for name, lasted_s in round_.stages_s.items():
            self._stages_s[name] += lasted_s

    def _note_look(self, round_: Round, *, is_whole: bool) -> None:
        """A second try tells a host that was slow this time from one that waits for the device in every
        round: there a look shows nothing however long the device is held back, and the next are single tries.
        """
        if is_whole:
            self._looks.add(round_.lasted_s)
            self._factor, self._was_vain = _HOLD, False
        elif self._factor == _HOLD and not self._was_vain:
            self._factor, self._next = _HOLD * _AGAIN, self._seen
        else:
            self._factor, self._was_vain = _HOLD, True
            self._plan_next(_VAIN)

    def worked_s(self, work: Collection[str]) -> float:
        """Seconds in which the device computed; until gaps are known, those of these stages instead."""
        if not self._looks.count:
            return self._exact_s + sum(self._stages_s[name] for name in work)
        return self._exact_s + min(self._paced_s, self._looks.total_s)

    @property
    def error_s(self) -> float:
        """How far off that may be: a standard error, or all the time in which there may have been gaps."""
        return min(self._paced_s, self._looks.error_s)

    @property
    def gap_s(self) -> float:
        """Seconds between kernels in all rounds, as far as is known."""
        return max(0.0, self._paced_s - self._looks.total_s) if self._looks.count else 0.0
