"""How many labels are wrong? A policy that seeks errors cannot tell a wrong label from a hard example. Pure.

A model that has learnt something ranks the right class of a hard example second or third, seldom last. A
wrong label that has nothing to do with its example ranks anywhere: as often in the last third of the places
behind the first as in the middle third. So a flat end of the ranking, beside many labels that rank first, is
the sign of wrong labels. Its height tells their number, however confident the model is. Labels confused only
with similar classes look like hard examples, and are not found.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sbpipe.records import Floats
from sbpipe.trainer.steering.window import CountsWindow

FEWEST_CLASSES = 5
"""With fewer, the places behind the first have no middle and last third to compare."""
CANDIDATES = 16384
"""Candidates that an estimate is taken over."""
BLIND = 1.25
"""Mean score over mean fresh loss of the same examples, above which the selector's model cannot be believed:
if the statistics of its normalisation layers lag behind, it ranks right labels anywhere too.
"""
FEW, MANY = 0.08, 0.16
"""Share of wrong labels at which selection begins to turn uniform, and at which it is uniform."""
GUESSING, LEARNT = 0.35, 0.55
"""Knowledge up to which an estimate does not count, and from which it counts in full: a model that knows
nothing ranks every label anywhere.
"""
DOUBTED = 0.03
"""Share of wrong labels from which probably wrong ones are passed over."""
CLOSING = 0.1
"""Share of the way to go in one step."""
WORTH_TELLING = 0.9
"""A factor below this is reported with its reason."""
_SETTLED = 0.01


class Estimate(NamedTuple):
    """The share of labels that look wrong, and the model's knowledge: the share of right-looking labels that
    it predicts, beyond always naming the most frequent class.
    """

    wrong: float
    knowledge: float


def estimate(by_place: NDArray[np.integer], largest_class: float) -> Estimate:
    """From the number of candidates by the place of their label; 0 = the model predicts it.

    Wrong labels put a share wrong / (classes - 1) into each place. Right labels that are not predicted put at
    most half as many into the last third as into the middle third, or the model knows little yet. So twice
    the last third less the middle third is at most the share that wrong labels put into a place.
    """
    share = by_place / max(1, int(by_place.sum()))
    _, middle, last = (float(third.mean()) for third in np.array_split(share[1:], 3))
    wrong = min(1.0, max(0.0, (2.0 * last - middle) * (len(share) - 1)))
    to_know = 1.0 - wrong - largest_class
    return Estimate(wrong, (float(share[0]) - largest_class) / to_know if to_know > 0.0 else 0.0)


def is_blind(scores: Floats, losses: Floats) -> bool:
    """Whether the scoring model cannot judge labels now; also True where nothing was scored."""
    known = np.isfinite(scores) & np.isfinite(losses)
    return not float(scores[known].sum()) <= BLIND * float(losses[known].sum()) or not known.any()


def evident(found: Estimate) -> float:
    """The share of wrong labels, reduced where the model knows too little to tell."""
    return found.wrong * _between(found.knowledge, GUESSING, LEARNT)


def trusted(wrong: float) -> float:
    """How far selection may follow errors where this share of the labels is wrong: 1 = fully, 0 = uniform."""
    return 1.0 - _between(wrong, FEW, MANY)


def _between(value: float, low: float, high: float) -> float:
    return min(1.0, max(0.0, (value - low) / (high - low)))


class LabelTrust:
    """A factor in [0, 1] that falls with the share of wrong labels, and the reason once it is low, else "".

    The largest share ever evident in the run counts: a model that has memorised wrong labels ranks them
    first, and they can no longer be seen.
    """

    def __init__(self) -> None:
        self._recent = CountsWindow(CANDIDATES)
        self._num_classes = 0
        self.factor = 1.0
        self.reason = ""
        self.wrong: float | None = None
        """The largest share of wrong labels that was evident; None = not known yet."""

    def observe(self, by_place: NDArray[np.integer], largest_class: float) -> None:
        """Take in the places of the labels of some candidates."""
        self._recent.add(by_place)
        self._num_classes = len(by_place)
        if len(by_place) >= FEWEST_CLASSES and self._recent.total >= CANDIDATES:
            self._judge(estimate(self._recent.counts, largest_class))

    @property
    def look_wrong(self) -> bool:
        """Whether so many labels are evidently wrong that they make up much of the gradient."""
        return self._num_classes >= FEWEST_CLASSES and (self.wrong or 0.0) >= DOUBTED

    @property
    def doubt_above(self) -> float | None:
        """The loss above which a label is probably wrong if it stays there: that of a guess. None = no single
        label is doubted.
        """
        return math.log(self._num_classes) if self.look_wrong else None

    def _judge(self, found: Estimate) -> None:
        if found.knowledge > GUESSING:
            self.wrong = max(self.wrong or 0.0, evident(found))
        goal = trusted(self.wrong or 0.0)
        self.factor += CLOSING * (goal - self.factor)
        if abs(self.factor - goal) < _SETTLED:
            self.factor = goal
        if self.factor < WORTH_TELLING:
            self.reason = self.reason or f"at least {100 * (self.wrong or 0.0):.0f} % look wrong"

    def state(self) -> dict[str, Any]:
        """For the checkpoint."""
        recent = self._recent.state()
        return {
            "recent": recent,
            "num_classes": self._num_classes,
            "factor": self.factor,
            "reason": self.reason,
            "wrong": self.wrong,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self._recent.restore(state["recent"])
        self._num_classes = state.get("num_classes", 0)
        self.factor, self.reason, self.wrong = state["factor"], state["reason"], state["wrong"]
