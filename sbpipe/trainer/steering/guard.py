"""The last resort against a loop that swings: choose less sharply until it calms down. Pure.

It watches two numbers of each step, the swing of the class shares and the effective sample size of the
weights. From them it makes a factor of the strength: 1 = open, 0 = uniform selection, which no delay can
hurt.
"""

CALM, WILD = 4.0, 10.0
"""Swing at which the guard begins to close, and at which it is shut. Healthy fresh selection was measured at
1 to 5 after its first steps, runs that ended near guessing at 10 to 20.
"""
ENOUGH, TOO_FEW = 0.35, 0.1
"""The same for the effective sample size."""
CLOSING, OPENING = 0.2, 0.02
"""Share of the way to go in one step: quick to close, slow to open, so that the guard itself does not swing.
"""


class Guard:
    """A factor in [0, 1] that follows the two alarms."""

    def __init__(self) -> None:
        self.factor = 1.0

    def observe(self, swing: float | None, ess: float | None) -> None:
        """Take in one step; None = not known, which raises no alarm."""
        goal = 1.0 - max(_alarm(swing, CALM, WILD), _alarm(ess, ENOUGH, TOO_FEW))
        self.factor += (CLOSING if goal < self.factor else OPENING) * (goal - self.factor)

    def state(self) -> float:
        """For the checkpoint."""
        return self.factor

    def restore(self, state: float) -> None:
        """Go on from a checkpoint."""
        self.factor = state


def _alarm(value: float | None, begins: float, full: float) -> float:
    """0 at `begins` and before it, 1 at `full` and beyond."""
    return 0.0 if value is None else min(1.0, max(0.0, (value - begins) / (full - begins)))
