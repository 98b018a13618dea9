"""`selection.keep = "auto"`: the second device's speed becomes selectivity. Pure.

A train batch is kept of the candidates that the selectors can score in the time of a step:

    keep = batch / (BUSY * step time * candidates scored per second)

within the bounds of the policy. The rate follows a selector that slows down, speeds up, joins or leaves, but
not the noise of a measurement: leases, their yield and the weights all depend on it.

It goes below the usual bound only where few candidates make up most of the gradient, and not below their
effective share (`selection/worth.py`): keeping fewer would leave out what could be learnt.
"""

from typing import NamedTuple

from sbpipe.config import KeepBounds
from sbpipe.machine.sync_needs import BUSY

DEAD_BAND = 0.1
"""Relative change below which the rate stays, unless the change reaches a bound."""
LARGE = 0.3
"""Relative change from which it does not wait for its turn."""
TURN = 8
"""Steps between two changes that are not large."""


class Change(NamedTuple):
    """A new keep rate, and what it comes from."""

    old: float
    new: float
    candidates: float
    """What the selectors can score in a step's time."""
    reason: str


def at_bound(keep: float, bounds: KeepBounds | None) -> str | None:
    """Where a keep rate lies between its bounds; None if it is fixed."""
    if bounds is None:
        return None
    return "least" if keep <= bounds.usual else "most" if keep >= bounds.most else "between"


class KeepControl:
    """The keep rate that leases aim at; without bounds it stays at `start`."""

    def __init__(self, start: float, bounds: KeepBounds | None, batch_size: int) -> None:
        self.keep = start
        self._bounds = bounds
        self._batch_size = batch_size
        self._changed_at: int | None = None

    def update(
        self, step: int, step_s: float | None, rates: list[float], effective: float | None = None
    ) -> Change | None:
        """Revise the rate by the loop's own period and the candidates per second of each ready selector.

        `effective` is the share of the candidates that makes up most of the gradient; None = not known, or
        not to be trusted. Returns None if the rate stays, as it does while period or speeds are not known.
        """
        speed = sum(rates)
        if self._bounds is None or step_s is None or not speed > 0.0 or not step_s > 0.0:
            return None
        candidates = BUSY * step_s * speed
        least, most = self._bounds.least_at(effective), self._bounds.most
        goal = min(max(self._batch_size / candidates, least), most)
        moved = abs(goal / self.keep - 1.0)
        waits = self._changed_at is not None and step - self._changed_at < TURN
        # Without this a rate next to a bound would never reach it; once there, only a large enough change
        # moves it.
        is_idle = moved == 0.0 if goal in self._bounds else moved < DEAD_BAND
        if is_idle or (waits and moved < LARGE):
            return None
        bound = {least: self._word_of(least), most: "the most the policy takes"}.get(goal)
        change = Change(self.keep, goal, candidates, bound or "what selectors score in a step's time")
        self.keep, self._changed_at = goal, step
        return change

    def _word_of(self, least: float) -> str:
        is_bound = self._bounds is not None and least in self._bounds
        return (
            "the least the policy takes" if is_bound else "the share of the candidates that does the pulling"
        )

    def restore(self, keep: float) -> None:
        """Go on from a checkpoint."""
        if self._bounds is not None:
            self.keep = keep
