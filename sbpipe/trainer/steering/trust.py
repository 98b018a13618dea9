"""Do scores say anything, and are labels right? If not, uniform selection is better. Pure.

Three signs count against scores, each over many steps and never from one batch: their rank correlation with
fresh losses (fidelity) is significantly below a bound; they all have one value; the selector's model predicts
one class for nearly all candidates. The result is a factor of the strength, 1 = scores are trusted, 0 =
uniform selection, with the reason in words. labels.py does the same for labels. Only what the trainer itself
knows at a step is used, so that under a logical clock every run decides alike.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sbpipe.records import Floats, Predicted
from sbpipe.selection.fidelity import weighted_spearman
from sbpipe.trainer.steering.labels import LabelTrust, is_blind
from sbpipe.trainer.steering.window import CountsWindow

LEARNING = 32
"""Number of first steps that never count: statistics of normalisation layers are still settling."""
LEAST = 0.1
"""Fidelity below which scores are not worth acting on."""
SURE = 2.0
"""Standard errors between the fidelity and the bound before trust is lost, and before it comes back."""
PAIRS, FEWEST_PAIRS, FEWEST_STEPS = 2048, 512, 16
"""Trained examples that the fidelity is taken over, the fewest, and the fewest steps they are from."""
ALIKE = 8
"""Steps in a row whose scores have one value before that counts, and whose scores differ before it is over.
"""
CANDIDATES, FEWEST_CANDIDATES = 2048, 512
"""The same as PAIRS for the candidates whose predictions are counted."""
ONE_CLASS, SEVERAL = 0.9, 0.7
"""Share of the examples of other classes that are predicted as the favourite one: from ONE_CLASS on trust is
lost, below SEVERAL it comes back.
"""
CLOSING, OPENING = 0.25, 0.05
"""Share of the way to go in one step: quick to close, slow to open again."""
_SETTLED = 0.01


class Trust:
    """A factor in [0, 1], and the reason why it is not 1; "" = scores are trusted."""

    def __init__(self, largest_class: float | None = None) -> None:
        """`largest_class` is the share of the most frequent class in the data; None = not known."""
        self._largest_class = largest_class
        self._fidelity = _Fidelity()
        self._values = _OneValue()
        self._classes = _OneClass()
        self._steps = 0
        self.labels = LabelTrust()
        self.factor = 1.0
        self.reason = ""

    def observe(
        self,
        scores: Floats,
        losses: Floats,
        keep_probability: Floats,
        predicted: Sequence[Predicted] = (),
        class_counts: Iterable[int] = (),
    ) -> None:
        """Take in a train batch, and what selectors' models predicted for the candidates before it."""
        self._steps += 1
        if self._steps > LEARNING:
            self._values.add(scores)
            self._fidelity.add(scores, losses, keep_probability)
            self._classes.add((told.by_class for told in predicted), class_counts)
            largest = self._classes.largest_trained if self._largest_class is None else self._largest_class
            self.reason = self._values.judge() or self._classes.judge(largest) or self._fidelity.judge()
            places = [told.by_place for told in predicted if told.by_place is not None]
            if places and not is_blind(scores, losses):
                for by_place in places:
                    self.labels.observe(by_place, largest)
        goal = 0.0 if self.reason else 1.0
        self.factor += (CLOSING if goal < self.factor else OPENING) * (goal - self.factor)
        if abs(self.factor - goal) < _SETTLED:
            self.factor = goal

    def state(self) -> dict[str, Any]:
        """For the checkpoint."""
        return {
            "steps": self._steps,
            "factor": self.factor,
            "reason": self.reason,
            "fidelity": self._fidelity.state(),
            "values": self._values.state(),
            "classes": self._classes.state(),
            "labels": self.labels.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self._steps, self.factor, self.reason = state["steps"], state["factor"], state["reason"]
        self._fidelity.restore(state["fidelity"])
        self._values.restore(state["values"])
        self._classes.restore(state["classes"])
        self.labels.restore(state["labels"])


class _Fidelity:
    """The rank correlation of the last trained examples' scores with their fresh losses."""

    def __init__(self) -> None:
        self._steps: deque[tuple[float, float]] = deque()
        self._is_low = False

    def add(self, scores: Floats, losses: Floats, keep_probability: Floats) -> None:
        found, pairs = weighted_spearman(scores, losses, 1.0 / keep_probability)
        if found == found and pairs > 1.0:
            # For n unrelated pairs the variance is 1 / (n - 1), so a step has the weight n - 1.
            self._steps.append((found, pairs - 1.0))
            total = self._total
            while len(self._steps) > FEWEST_STEPS and total - self._steps[0][1] >= PAIRS:
                total -= self._steps.popleft()[1]

    @property
    def _total(self) -> float:
        return sum(weight for _, weight in self._steps)

    def judge(self) -> str:
        total = self._total
        if len(self._steps) < FEWEST_STEPS or total < FEWEST_PAIRS:
            return ""
        mean = sum(found * weight for found, weight in self._steps) / total
        error = total**-0.5
        bound = LEAST + SURE * error if self._is_low else LEAST - SURE * error
        self._is_low = mean < bound
        return f"their rank correlation with fresh losses is {mean:.2f} ± {error:.2f}" if self._is_low else ""

    def state(self) -> dict[str, Any]:
        return {"steps": list(self._steps), "is_low": self._is_low}

    def restore(self, state: dict[str, Any]) -> None:
        self._steps = deque((found, weight) for found, weight in state["steps"])
        self._is_low = state["is_low"]


class _OneValue:
    """Whether all scores of the last train batches are equal."""

    def __init__(self) -> None:
        self._alike: deque[bool] = deque(maxlen=ALIKE)
        self._is_alike = False
        self._value = 0.0

    def add(self, scores: Floats) -> None:
        known = scores[np.isfinite(scores)]
        if len(known) >= min(ALIKE, len(scores)) and len(known) > 1:
            low, high = float(known.min()), float(known.max())
            self._alike.append(high - low <= 1e-6 * max(abs(low), abs(high)))
            self._value = high

    def judge(self) -> str:
        if len(self._alike) == ALIKE:
            self._is_alike = all(self._alike) or (self._is_alike and any(self._alike))
        return f"they are all {self._value:.4g}" if self._is_alike else ""

    def state(self) -> list[Any]:
        return [list(self._alike), self._is_alike, self._value]

    def restore(self, state: list[Any]) -> None:
        alike, self._is_alike, self._value = state
        self._alike = deque(alike, ALIKE)


class _OneClass:
    """Whether the selector's model predicts one class for nearly all candidates."""

    def __init__(self) -> None:
        self._predicted = CountsWindow(CANDIDATES)
        self._trained: NDArray[np.int64] = np.zeros(0, np.int64)
        self._is_one = False

    def add(self, predicted: Iterable[NDArray[np.int32]], class_counts: Iterable[int]) -> None:
        trained = np.array(class_counts, np.int64)
        self._trained = self._trained + trained if len(trained) == len(self._trained) else trained
        for counts in predicted:
            self._predicted.add(counts)

    @property
    def largest_trained(self) -> float:
        """The share of the most frequent class among what was trained; 1 = not known."""
        total = int(self._trained.sum())
        return float(self._trained.max() / total) if total else 1.0

    def judge(self, largest_class: float) -> str:
        total, counts = self._predicted.total, self._predicted.counts
        if total < FEWEST_CANDIDATES or len(counts) < 2 or largest_class >= 1.0:
            return ""
        share = float(counts.max()) / total
        taken = (share - largest_class) / (1.0 - largest_class)
        self._is_one = taken >= (SEVERAL if self._is_one else ONE_CLASS)
        if not self._is_one:
            return ""
        of_all = f"{100 * share:.0f} % of its candidates"
        return f"the selector's model predicts class {int(counts.argmax())} for {of_all}"

    def state(self) -> list[Any]:
        return [self._predicted.state(), self._trained.tolist(), self._is_one]

    def restore(self, state: list[Any]) -> None:
        predicted, trained, self._is_one = state
        self._predicted.restore(predicted)
        self._trained = np.array(trained, np.int64)
