"""A wrapper around a policy that adjusts scores by the recent ones before the policy sees them.

Knows neither the policy nor what the adjustment does.
"""

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from sbpipe.records import Classes, Floats
from sbpipe.selection.class_history import ClassHistory
from sbpipe.selection.draws import Mask
from sbpipe.selection.history import History
from sbpipe.selection.policy import Policy, SetPolicy


class ScoreAdjustment(ABC):
    """Wraps any policy that uses scores; a subclass says what the policy sees instead of them.

    It remembers the original scores, so that one adjustment never changes the next.
    """

    def __init__(self, policy: Policy, history: History | ClassHistory) -> None:
        self._policy = policy
        self._history = history
        self.traits = policy.traits

    @abstractmethod
    def adjust(self, scores: Floats, classes: Classes | None) -> Floats:
        """What the policy sees instead of these scores, once there is a history."""

    def keep_probability(
        self, scores: Floats, classes: Classes | None = None, *, keep: float, strength: float = 1.0
    ) -> Floats:
        """The policy's keep probabilities for adjusted scores."""
        seen = self.adjust(scores, classes) if len(self._history.state()) else scores
        return self._policy.keep_probability(seen, classes, keep=keep, strength=strength)

    def draw(self, probability: Floats, uniform: NDArray[np.float64]) -> Mask:
        """As the policy draws."""
        return self._policy.draw(probability, uniform)

    def choose_set(
        self,
        scores: Floats,
        residuals: Floats,
        count: int,
        uniform: NDArray[np.float64],
        *,
        strength: float,
        due: Mask,
        passed_over: Mask | None = None,
    ) -> Mask:
        """The policy's choice by adjusted scores. Residuals are unchanged, so only candidates whose score is
        removed drop out.
        """
        assert isinstance(self._policy, SetPolicy)
        seen = self.adjust(scores, None) if len(self._history.state()) else scores
        return self._policy.choose_set(
            seen, residuals, count, uniform, strength=strength, due=due, passed_over=passed_over
        )

    def consider(self, scores: Floats, classes: Classes | None = None) -> None:
        """Remember the original scores."""
        self._history.push(scores, classes)
        self._policy.consider(scores, classes)

    def state(self) -> Floats:
        """The history, oldest first."""
        return self._history.state()

    def restore(self, state: Floats, classes: Classes | None = None) -> None:
        """Take over a history."""
        self._history.restore(state, classes)
        self._policy.restore(state, classes)
