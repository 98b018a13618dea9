"""How much of a long run is written: every step at first, then ever longer windows of steps. Pure.

A file of events grows with the logarithm of the run, and is only ever appended to. Knows no event.
"""

from typing import NamedTuple

DENSE_S = 1024.0
"""How long what comes by the clock is written as often as it comes."""


class Density(NamedTuple):
    """How many of a long series are written; all three are powers of two, or 0."""

    dense: int
    """So many first ones have an event each."""
    windows: int
    """Events each time that the series doubles its length after that."""
    singles: int
    """First ones after every doubling that have an event each again: late ones are seen close up too."""

    def window_of(self, number: int) -> int:
        """How many the event that holds this one stands for, at the most; a power of two."""
        octave = 1 << (number.bit_length() - 1) if number else 0
        if number < self.dense or number - octave < self.singles:
            return 1
        return octave // self.windows

    def ends_window(self, number: int) -> bool:
        """Whether an event is due after this one."""
        # Windows begin at multiples of their length, whatever number the process began with.
        return (number + 1) % self.window_of(number) == 0


STEPS = Density(dense=8192, windows=2048, singles=64)
"""Steps of the trainer, leases of one selector."""
EVALUATIONS = Density(dense=512, windows=128, singles=0)
"""What an evaluation says of every class, and of the scores."""


def interval_s(elapsed_s: float, shortest_s: float) -> float:
    """Seconds between two events that come by the clock, after so many seconds of the run."""
    return shortest_s if elapsed_s < DENSE_S else float(1 << (int(elapsed_s / DENSE_S).bit_length() - 1))
