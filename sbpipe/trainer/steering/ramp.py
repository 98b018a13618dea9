"""How sharply to choose, by the model's progress: uniformly while it knows nothing. Pure."""

import math

import numpy as np

from sbpipe.records import Floats

START = 128
"""The mean loss of this many first examples is the loss at the start."""


class Ramp:
    """Strength g = clip(1 - mean loss now / loss at the start, 0, 1).

    The mean is over the last trained examples, each weighted 1 / keep probability, so that it estimates that
    of all candidates and not of the chosen ones. Nothing is tuned: once the loss has halved, leases choose
    half as sharply as plain Selective-Backprop.
    """

    def __init__(self, window: int) -> None:
        self._window = max(window, START)
        self._losses: Floats = np.empty(0, np.float32)
        self._weights: Floats = np.empty(0, np.float32)
        self._at_start: float | None = None
        self.strength = 0.0
        """0 at the start, and where the loss cannot measure progress: not positive at the start, or not
        finite now.
        """

    def observe(self, losses: Floats, keep_probability: Floats) -> None:
        """Take in the fresh losses of one train batch."""
        self._losses = np.concatenate([self._losses, losses])[-self._window :]
        self._weights = np.concatenate([self._weights, 1.0 / keep_probability])[-self._window :]
        if self._at_start is None and len(self._losses) >= START:
            self._at_start = self._mean()
        self.strength = self._strength()

    def _strength(self) -> float:
        if self._at_start is None or not self._at_start > 0.0:
            return 0.0
        strength = 1.0 - self._mean() / self._at_start
        return min(max(strength, 0.0), 1.0) if math.isfinite(strength) else 0.0

    def _mean(self) -> float:
        return float(self._losses @ self._weights / self._weights.sum())

    def state(self) -> dict[str, object]:
        """For the checkpoint."""
        return {"losses": self._losses, "weights": self._weights, "at_start": self._at_start}

    def restore(self, state: dict[str, object]) -> None:
        """Go on from a checkpoint."""
        self._losses = np.asarray(state["losses"], np.float32)
        self._weights = np.asarray(state["weights"], np.float32)
        self._at_start = state["at_start"]  # type: ignore[assignment]
        self.strength = self._strength()
