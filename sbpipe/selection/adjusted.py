"""A policy behind a lens: it sees scores adjusted by the recent ones as they came. Knows neither the policy
nor the adjustment.
"""

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from sbpipe.records import Classes, Floats
from sbpipe.selection.by_class import ClassHistory
from sbpipe.selection.history import History
from sbpipe.selection.policy import Policy
from sbpipe.selection.within import Mask


class Adjusted(ABC):
    """Wraps any policy that looks at scores; who derives from it says what the policy sees of them.

    It remembers scores as they came, not as adjusted, so that one adjustment never feeds the next.
    """

    def __init__(self, policy: Policy, history: History | ClassHistory) -> None:
        self._policy = policy
        self._history = history
        self.traits = policy.traits

    @abstractmethod
    def adjust(self, scores: Floats, classes: Classes | None) -> Floats:
        """What the policy sees in place of these scores, once there is a history."""

    def keep_probability(
        self, scores: Floats, classes: Classes | None = None, *, strength: float = 1.0
    ) -> Floats:
        """The policy's, of adjusted scores."""
        seen = self.adjust(scores, classes) if len(self._history.state()) else scores
        return self._policy.keep_probability(seen, classes, strength=strength)

    def draw(self, probability: Floats, uniform: NDArray[np.float64]) -> Mask:
        """As the policy draws."""
        return self._policy.draw(probability, uniform)

    def consider(self, scores: Floats, classes: Classes | None = None) -> None:
        """Remember the scores as they came."""
        self._history.push(scores, classes)
        self._policy.consider(scores, classes)

    def state(self) -> Floats:
        """The history, oldest first."""
        return self._history.state()

    def restore(self, state: Floats, classes: Classes | None = None) -> None:
        """Take over a history."""
        self._history.restore(state, classes)
        self._policy.restore(state, classes)
