"""How densely a long run is written: every step at first, then longer and longer windows of steps. Pure.

So a file of events grows with the logarithm of the run's length, and is only appended to. Knows no event.
"""

from typing import NamedTuple

DENSE_S = 1024.0
"""For so many seconds, events that come by the clock are written at their shortest interval."""


class Density(NamedTuple):
    """How densely a long series is written; all three numbers are powers of two, or 0."""

    dense: int
    """The first so many items have an event each."""
    windows: int
    """Events per doubling of the series' length after that."""
    singles: int
    """After every doubling the first so many items have an event each again, to show late ones in detail."""

    def window_of(self, number: int) -> int:
        """The most items that this item's event stands for; a power of two."""
        octave = 1 << (number.bit_length() - 1) if number else 0
        if number < self.dense or number - octave < self.singles:
            return 1
        return octave // self.windows

    def ends_window(self, number: int) -> bool:
        """Whether an event is due after this item."""
        # Windows begin at multiples of their length, even if the process began in the middle of one.
        return (number + 1) % self.window_of(number) == 0


STEPS = Density(dense=8192, windows=2048, singles=64)
"""Steps of the trainer, leases of one selector."""
EVALUATIONS = Density(dense=512, windows=128, singles=0)
"""Evaluations' numbers for every class, and scores."""


def interval_s(elapsed_s: float, shortest_s: float) -> float:
    """Seconds between two events that come by the clock, `elapsed_s` into the run."""
    return shortest_s if elapsed_s < DENSE_S else float(1 << (int(elapsed_s / DENSE_S).bit_length() - 1))
