"""Estimates how long a device computes in a loop whose host launches slower than the device computes.

Events tell when a round of the loop began and ended on the device, but not how long the gaps between its
kernels were. So before one round in many the device is held back for as long as its host needs to launch the
round. The device then computes the round in one go, together with work from other threads, and this time
stands for the rounds near it. The rest of their time were gaps: inside stages, between them, and in stages in
which only the host works. The results do not change.

The cost of a look is proportional to a round: the device ends it a round later, and a loop that reads its
losses a step late waits for a part of that. Looks become rarer, at last less than one in a thousand rounds.
They are taken in our own loop only (`Plan.is_looked_into`): a user's device is not made to sleep for a
figure. It must not know what the stages do.
"""

import statistics
from collections import defaultdict, deque
from collections.abc import Callable, Collection

from sbpipe.machine.looks import Looks
from sbpipe.machine.rounds import Round

_FIRST = 4
"""Rounds before the first look: warm-up rounds are not typical."""
_REMEMBERED, _USUAL = 8, 4.0
"""How many launch times of rounds are remembered, and the multiple of their median that counts as unusual."""
_HOLD = 1.5
"""A device is held back for this many times the slowest remembered launch time. A shorter hold would leave
out slow rounds, which may compute more.
"""
_AGAIN = 2.0
"""If that was too short, the next round is held back for this many times as long."""
_NEAR, _FAR, _VAIN = 1.5, 2.0, 4.0
"""The growth of the number of rounds from one look to the next: until enough is known, after that, and after
a look that showed nothing.
"""
_FEW, _ENOUGH = 4, 0.02
"""Enough is known after this many looks, with this standard error as a share of the computed time."""
_LONGEST = 1021
"""The most rounds between two looks: a prime, so that looks do not always meet work done every n-th round."""
_FOLLOWS = 1 / 4
"""A device that ends less than this share of a round after its host has followed the host. A device that sets
the pace is behind by most of a step.
"""


class Gaps:
    """Decides which rounds to look into, and what they say of all other rounds."""

    def __init__(self, hold: Callable[[float], bool]) -> None:
        """`hold` makes the device sleep for so many seconds before its next work; returns whether it does."""
        self._hold = hold
        self._seen, self._next = 0, _FIRST
        self._factor, self._was_vain = _HOLD, False
        self._launchings: deque[float] = deque(maxlen=_REMEMBERED)
        self._host_sets_pace = False
        """Whether it did so in the last round."""
        self.clear()

    def clear(self) -> None:
        """Count from here."""
        self._exact_s = self._paced_s = 0.0
        self._looks = Looks()
        self._stages_s: defaultdict[str, float] = defaultdict(float)

    def hold(self) -> bool:
        """Hold the device back if a look is due and the host sets the pace; returns whether it is held."""
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
            is_exact = not self._host_sets_pace  # counted like the rounds before it
        elif round_.is_held:
            # If the device ran dry, it did not compute the round in one go.
            is_exact = not round_.is_dry and round_.behind_s > 0.0
            self._note_look(round_, is_whole=is_exact)
        else:
            # A device that is behind sets the pace: it computes all the time.
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
        """Note the result of a look. After a failed look there is one second try, which tells a host that was
        slow once from one that waits for the device in every round. For the latter no hold is long enough, so
        its later looks have single tries.
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
        """Seconds in which the device computed; until gaps are known, the time of these stages instead."""
        if not self._looks.count:
            return self._exact_s + sum(self._stages_s[name] for name in work)
        return self._exact_s + min(self._paced_s, self._looks.total_s)

    @property
    def error_s(self) -> float:
        """The error of `worked_s`: a standard error, or all the time in which there may have been gaps."""
        return min(self._paced_s, self._looks.error_s)

    @property
    def gap_s(self) -> float:
        """Estimated seconds between kernels in all rounds; 0 while nothing is known."""
        return max(0.0, self._paced_s - self._looks.total_s) if self._looks.count else 0.0
