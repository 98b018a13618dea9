"""What all of many rounds computed, from the few that were looked into: a sum, and its standard error. Pure.

A mean, not a median: what is wanted is a sum, and the rare long round is part of it. Looks are close together
at first and far apart later, so each stands for the rounds nearest to it, not for as many as any other.
"""

import math


class Looks:
    """Rounds that were looked into, among others that were not."""

    def __init__(self) -> None:
        self.count = 0
        self._last_s = 0.0
        self._num_since = 0
        """Rounds that were not looked into, after the last that was."""
        self._num_for_last = 0.0
        """How many before that the last one stands for."""
        # Of all looks but the last: what their rounds computed, and the squares of how many those are.
        self._sum_s = self._squares = 0.0
        self._differences = 0.0
        """Squares of what two in a row differ by: unlike the distance from the mean, a drift is no error."""

    def skip(self) -> None:
        """A round was not looked into."""
        self._num_since += 1

    def add(self, computed_s: float) -> None:
        """One was, and computed for so long."""
        if self.count:
            self._sum_s, self._squares = self._with_last(self._num_since / 2)
            self._differences += (computed_s - self._last_s) ** 2
        # The first one stands for all before it; of those between two, each has half.
        self._num_for_last = self._num_since / 2 if self.count else float(self._num_since)
        self.count, self._num_since, self._last_s = self.count + 1, 0, computed_s

    @property
    def total_s(self) -> float:
        """What the rounds that were not looked into computed."""
        return self._with_last(self._num_since)[0]

    @property
    def error_s(self) -> float:
        """The standard error of that; infinite before the second look."""
        if self.count < 2:
            return math.inf
        variance = self._differences / (2 * (self.count - 1))
        return math.sqrt(variance * self._with_last(self._num_since)[1])

    def _with_last(self, num_after: float) -> tuple[float, float]:
        """The sums with the last look, which stands for so many rounds after it."""
        count = self._num_for_last + num_after
        return self._sum_s + count * self._last_s, self._squares + count**2
