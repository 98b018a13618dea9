"""Is a model blind in evaluation mode? Decided from candidates scored in it and with batch statistics. Pure.

Training normalises with the statistics of its batch, scoring with those that BatchNorm layers have stored. If
the stored ones lag (a small momentum, a short run), evaluation mode does not compute what is trained, and the
ranks of its losses mean nothing.
"""

from collections import deque
from typing import NamedTuple

import numpy as np

from sbpipe.records import Floats
from sbpipe.selection.fidelity import spearman

CHECKED, FEWEST = 64, 16
"""Candidates in a check, and the fewest for a check or an estimate."""
SETTLED_WEIGHTS, SETTLED_CANDIDATES = 12, 4096
"""New weights and candidates before the first check: in the first steps every model's statistics lag."""
NEAR_WEIGHTS, NEAR_CANDIDATES = 4, 2048
"""The same between two checks while the result is open; FAR_CANDIDATES between later checks."""
FAR_CANDIDATES = 32_768
LAST = 3
"""Checks that a decision is made from."""
BLIND, SEES = 0.3, 0.6
"""Mean rank agreement of both ways below which evaluation mode counts as blind, and above which it no longer
does. Healthy nets were measured at 0.5 to 0.95 after their first 16 steps, a blind one at 0.2 to -0.5.
"""


class Check(NamedTuple):
    """Some candidates scored both ways: mean losses, and the rank correlation of the two."""

    evaluation_loss: float
    batch_loss: float
    agreement: float


class Blindness:
    """When to check, and whether evaluation mode is blind, from the last few checks. Pure."""

    def __init__(self) -> None:
        self._weights = self._candidates = 0
        self._last: deque[Check] = deque(maxlen=LAST)
        self.num_checks = 0
        self.is_blind = False

    def weights_arrived(self) -> None:
        """Note new weights."""
        self._weights += 1

    def is_due(self, num_candidates: int) -> bool:
        """Whether to check some of the candidates that are about to be scored."""
        self._candidates += num_candidates
        if num_candidates < FEWEST:
            return False
        if not self._last:
            is_due = self._weights >= SETTLED_WEIGHTS and self._candidates >= SETTLED_CANDIDATES
        elif self._is_open:
            is_due = self._weights >= NEAR_WEIGHTS and self._candidates >= NEAR_CANDIDATES
        else:
            is_due = self._weights >= NEAR_WEIGHTS and self._candidates >= FAR_CANDIDATES
        if is_due:
            self._weights = self._candidates = 0
        return is_due

    def mark(self) -> tuple[int, int]:
        """The state of counting to the next check."""
        return self._weights, self._candidates

    def go_back(self, mark: tuple[int, int]) -> None:
        """Undo `is_due` calls since the mark: their candidates are not scored after all."""
        self._weights, self._candidates = mark

    @property
    def _is_open(self) -> bool:
        """Whether the last checks are too few or disagree with the present decision."""
        return len(self._last) < LAST or any(
            (check.agreement < SEES) != self.is_blind for check in self._last
        )

    def note(self, evaluated: Floats, batch: Floats) -> Check | None:
        """Take in the losses of some candidates in evaluation mode and with batch statistics."""
        agreement = spearman(evaluated, batch)
        if not (np.isfinite(agreement) and np.isfinite(evaluated).all() and np.isfinite(batch).all()):
            return None
        check = Check(float(evaluated.mean()), float(batch.mean()), agreement)
        self._last.append(check)
        self.num_checks += 1
        if len(self._last) == LAST:
            mean = sum(check.agreement for check in self._last) / LAST
            worse = sum(check.evaluation_loss - check.batch_loss for check in self._last)
            # Both conditions: if evaluation mode is not worse, differing ranks are no blindness.
            self.is_blind = mean < SEES if self.is_blind else mean < BLIND and worse > 0.0
        return check

    @property
    def mean(self) -> Check | None:
        """The means of the last checks; None before the first."""
        if not self._last:
            return None
        return Check(*(sum(values) / len(self._last) for values in zip(*self._last, strict=True)))
