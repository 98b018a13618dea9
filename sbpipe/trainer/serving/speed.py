"""How fast a selector scores, from its answers: steady in noise, quick after a change. Pure.

A selector whose core is shared or throttled answers in bursts: one lease takes a third of the mean, the next
one twice of it. A mean over few answers follows every burst, one over many is late when the speed has really
changed. So the mean is taken over many answers, and the older ones are dropped as soon as the newest differ
from them by more than their own scatter explains.
"""

import math
from collections import deque
from collections.abc import Iterable, Mapping

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
        self._newest = {count: _Newest(count) for count in CHANGES}

    def add(self, considered: int, seconds: float) -> None:
        """An answer took the selector so long."""
        self._answers.append((considered, seconds))
        self._sums.count_in(considered, seconds)
        for newest in self._newest.values():
            newest.add(considered, seconds)
        change = _change(self._sums, self._newest)
        # The change is seen before it is over: the older half of these may be from before it.
        most = MOST if change is None else change // 2
        while len(self._answers) > most:
            self._sums.count_in(*self._answers.popleft(), sign=-1)
        if change is not None:
            self._newest = _newest_of(self._answers)

    @property
    def num_alike(self) -> int:
        """How many of the last answers tell the speed of now."""
        return len(self._answers)

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


class _Newest:
    """The sums of so many of the newest answers that had candidates."""

    def __init__(self, count: int) -> None:
        self.sums = _Sums()
        self._count = count
        self._answers: deque[tuple[int, float]] = deque()

    def add(self, considered: int, seconds: float) -> None:
        """One more, and the oldest of them no longer."""
        if considered > 0:
            self._answers.append((considered, seconds))
            self.sums.count_in(considered, seconds)
            if len(self._answers) > self._count:
                self.sums.count_in(*self._answers.popleft(), sign=-1)


def _newest_of(answers: Iterable[tuple[int, float]]) -> dict[int, _Newest]:
    newest = {count: _Newest(count) for count in CHANGES}
    for considered, seconds in answers:
        for one in newest.values():
            one.add(considered, seconds)
    return newest


def _change(sums: _Sums, newest: Mapping[int, _Newest]) -> int | None:
    """How many of the newest answers show that the speed has changed; None if it has not."""
    for count, least in CHANGES.items():
        # As many before them at least: two answers have no scatter.
        if sums.number < 2 * count:
            break
        if _differ(sums, newest[count].sums, least):
            return count
    return None


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
