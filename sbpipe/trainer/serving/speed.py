"""How fast a selector scores, from its answers: steady in noise, quick after a change. Pure.

A selector whose core is shared or throttled answers in bursts: one lease takes a third of the mean, the next
one twice the mean. A mean over few answers follows every burst; one over many is late when the speed has
really changed. So the mean is over many answers, and the older ones are dropped as soon as the newest differ
from them by more than their own variance explains.
"""

import math
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

MOST = 96
"""The most answers that count."""
CHANGES = {8: 0.3, 16: 0.2, 32: 0.1}
"""How many of the newest answers are compared with those before them, and the smallest relative change of the
time per candidate that counts: a large change shows in few answers, a small one in many.
"""
SURE = 3.5
"""Standard errors between newer and older answers before the older ones are dropped."""


class _Until(NamedTuple):
    """Sums over the answers so far that had candidates: of the time per candidate, and of its square."""

    times: float
    squares: float


class Speed:
    """Candidates per second over the last answers of one speed."""

    def __init__(self) -> None:
        self._answers: deque[tuple[int, float]] = deque()
        self._candidates, self._seconds = 0, 0.0
        # Prefix sums: before the oldest of these answers, and after each of them.
        self._until = deque([_Until(0.0, 0.0)])

    def add(self, considered: int, seconds: float) -> None:
        """Note an answer: `considered` candidates in `seconds`."""
        self._answers.append((considered, seconds))
        self._candidates += considered
        self._seconds += seconds
        if considered > 0:
            time, before = seconds / considered, self._until[-1]
            self._until.append(_Until(before.times + time, before.squares + time * time))
        change = _change(self._until)
        # A change is detected while it goes on: the older half of these may be from before it.
        most = MOST if change is None else change // 2
        while len(self._answers) > most:
            self._drop()

    def _drop(self) -> None:
        considered, seconds = self._answers.popleft()
        self._candidates -= considered
        self._seconds -= seconds
        if considered > 0:
            self._until.popleft()

    @property
    def num_alike(self) -> int:
        """How many of the last answers count for the present speed."""
        return len(self._answers)

    @property
    def rate(self) -> float | None:
        """Candidates per second; None before the first answer."""
        return self._candidates / self._seconds if self._seconds > 0.0 else None


def _change(until: Sequence[_Until]) -> int | None:
    """How many of the newest answers show that the speed has changed; None if it has not."""
    number = len(until) - 1
    for count, least in CHANGES.items():
        # At least as many before them: the variance of few answers says nothing.
        if number < 2 * count:
            break
        if _differ(until[0], until[-1 - count], until[-1], number - count, count, least):
            return count
    return None


def _differ(begin: _Until, middle: _Until, end: _Until, older: int, newer: int, least: float) -> bool:
    """Whether the `older` answers up to the middle and the `newer` ones after it are of two speeds."""
    before, before_variance = _moments(begin, middle, older)
    now, now_variance = _moments(middle, end, newer)
    # The larger variance of the two: a few similar times in a row do not prove that the selector became
    # steady.
    error = math.sqrt(max(before_variance, now_variance) * (1.0 / older + 1.0 / newer))
    return abs(now - before) > max(SURE * error, least * before)


def _moments(begin: _Until, end: _Until, number: int) -> tuple[float, float]:
    """Mean and variance, which rounding may take below zero."""
    mean = (end.times - begin.times) / number
    return mean, max(0.0, (end.squares - begin.squares) / number - mean * mean)
