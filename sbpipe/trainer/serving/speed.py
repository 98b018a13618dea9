"""How fast a selector scores, from its answers: steady in noise, quick after a change. Pure.

A selector whose core is shared or throttled answers in bursts: one lease takes a third of the mean, the next
one twice of it. A mean over few answers follows every burst, one over many is late when the speed has really
changed. So the mean is taken over many answers, and the older ones are dropped as soon as the newest differ
from them by more than their own scatter explains.
"""

import math
from collections import deque
from collections.abc import Sequence

MOST = 96
"""Answers that count at the most."""
CHANGES = {8: 0.3, 16: 0.2, 32: 0.1}
"""How many of the newest answers are compared with those before them, and the relative change of the time per
candidate that is looked for: a large one shows in few answers, a small one in many.
"""
SURE = 3.5
"""Standard errors between newer and older answers before the older ones are dropped."""


class Speed:
    """Candidates per second over the last answers that are alike."""

    def __init__(self) -> None:
        self._answers: deque[tuple[int, float]] = deque()
        self._sums = _Sums()

    def add(self, considered: int, seconds: float) -> None:
        """An answer took the selector so long."""
        self._answers.append((considered, seconds))
        self._sums.count_in(considered, seconds)
        newest = min(MOST, newest_alike(self._answers, self._sums))
        while len(self._answers) > newest:
            self._sums.count_in(*self._answers.popleft(), sign=-1)

    @property
    def rate(self) -> float | None:
        """Candidates per second; None before the first answer."""
        return self._sums.candidates / self._sums.seconds if self._sums.seconds > 0.0 else None


class _Sums:
    """Of some answers: kept as they come and go, for every answer is looked at in its turn."""

    __slots__ = ("candidates", "number", "seconds", "squares", "times")

    def __init__(self) -> None:
        self.candidates, self.seconds = 0, 0.0
        # Of those that had candidates: the times for each of them, and their squares.
        self.number, self.times, self.squares = 0, 0.0, 0.0

    def count_in(self, considered: int, seconds: float, sign: int = 1) -> None:
        """One answer more, or less."""
        self.candidates += sign * considered
        self.seconds += sign * seconds
        if considered > 0:
            time = seconds / considered
            self.number += sign
            self.times += sign * time
            self.squares += sign * time * time


def newest_alike(answers: Sequence[tuple[int, float]], sums: _Sums | None = None) -> int:
    """How many of the last answers, each of so many candidates in so many seconds, tell the speed of now."""
    if sums is None:
        sums = _Sums()
        for answer in answers:
            sums.count_in(*answer)
    newer, backwards = _Sums(), reversed(answers)
    for count, least in CHANGES.items():
        # As many before them at least: two answers have no scatter.
        if sums.number < 2 * count:
            break
        while newer.number < count:
            newer.count_in(*next(backwards))
        if _differ(sums, newer, least):
            # The change is seen before it is over: the older half of these may be from before it.
            return count // 2
    return len(answers)


def _differ(of_all: _Sums, newer: _Sums, least: float) -> bool:
    number = of_all.number - newer.number
    before, before_variance = _moments(number, of_all.times - newer.times, of_all.squares - newer.squares)
    now, now_variance = _moments(newer.number, newer.times, newer.squares)
    # The larger scatter of the two: a few short ones in a row are no proof of a selector that became steady.
    error = math.sqrt(max(before_variance, now_variance) * (1.0 / number + 1.0 / newer.number))
    return abs(now - before) > max(SURE * error, least * before)


def _moments(number: int, total: float, squares: float) -> tuple[float, float]:
    """Mean and variance, which rounding may take below zero."""
    mean = total / number
    return mean, max(0.0, squares / number - mean * mean)
