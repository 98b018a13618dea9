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
        self._answers: deque[tuple[int, float]] = deque(maxlen=MOST)

    def add(self, considered: int, seconds: float) -> None:
        """An answer took the selector so long."""
        self._answers.append((considered, seconds))
        newest = newest_alike(self._answers)
        while len(self._answers) > newest:
            self._answers.popleft()

    @property
    def rate(self) -> float | None:
        """Candidates per second; None before the first answer."""
        seconds = sum(seconds for _, seconds in self._answers)
        return sum(considered for considered, _ in self._answers) / seconds if seconds > 0.0 else None


def newest_alike(answers: Sequence[tuple[int, float]]) -> int:
    """How many of the last answers, each of so many candidates in so many seconds, tell the speed of now."""
    times = [seconds / considered for considered, seconds in answers if considered > 0]
    for count, least in CHANGES.items():
        # As many before them at least: two answers have no scatter.
        if len(times) >= 2 * count and _differ(times[:-count], times[-count:], least):
            # The change is seen before it is over: the older half of these may be from before it.
            return count // 2
    return len(answers)


def _differ(older: Sequence[float], newer: Sequence[float], least: float) -> bool:
    before, before_scatter = _moments(older)
    now, now_scatter = _moments(newer)
    # The larger scatter of the two: a few short ones in a row are no proof of a selector that became steady.
    error = max(before_scatter, now_scatter) * math.sqrt(1.0 / len(older) + 1.0 / len(newer))
    return abs(now - before) > max(SURE * error, least * before)


def _moments(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation; the exact sums of `statistics` take fifty times as long."""
    mean = sum(values) / len(values)
    return mean, math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))
