"""Estimates the computing time of many rounds from the few looked into: a sum and its standard error. Pure.

It uses means, not medians: the rare long round is part of the sum. Looks are close together at first and far
apart later, so each one stands for the rounds nearest to it, not for equally many.
"""

import math


class Looks:
    """Rounds that were looked into, among others that were not."""

    def __init__(self) -> None:
        self.count = 0
        self._last_s = 0.0
        self._num_since = 0
        """Rounds since the last look."""
        self._num_for_last = 0.0
        """How many rounds before it the last look stands for."""
        # For all looks but the last: the computed seconds of their rounds, and the squared numbers of rounds.
        self._sum_s = self._squares = 0.0
        self._differences = 0.0
        """Squared differences of consecutive looks: unlike distances from the mean, they ignore a drift."""

    def skip(self) -> None:
        """A round was not looked into."""
        self._num_since += 1

    def add(self, computed_s: float) -> None:
        """A round was looked into, and computed for so long."""
        if self.count:
            self._sum_s, self._squares = self._with_last(self._num_since / 2)
            self._differences += (computed_s - self._last_s) ** 2
        # The first look stands for all rounds before it; rounds between two looks are split in half.
        self._num_for_last = self._num_since / 2 if self.count else float(self._num_since)
        self.count, self._num_since, self._last_s = self.count + 1, 0, computed_s

    @property
    def total_s(self) -> float:
        """The computing time of the rounds that were not looked into."""
        return self._with_last(self._num_since)[0]

    @property
    def error_s(self) -> float:
        """The standard error of `total_s`; infinite before the second look."""
        if self.count < 2:
            return math.inf
        variance = self._differences / (2 * (self.count - 1))
        return math.sqrt(variance * self._with_last(self._num_since)[1])

    def _with_last(self, num_after: float) -> tuple[float, float]:
        """The sums including the last look, which also stands for `num_after` rounds after it."""
        count = self._num_for_last + num_after
        return self._sum_s + count * self._last_s, self._squares + count**2
