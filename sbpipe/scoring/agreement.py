"""Whether scores of a lower precision rank like exact ones, from candidates scored twice. Knows no model."""

from collections import deque

import numpy as np

from sbpipe.records import Floats
from sbpipe.selection.fidelity import spearman

SLICE = 32
"""Candidates scored twice in a check."""
SPACING = 128 * SLICE
"""Candidates between two checks, so that a check costs little even where every lease has new weights."""
# One slice of 32 is a noisy estimate: no verdict, and no step back, before this many of them.
_LAST = 4


def agreement_of(scores: Floats, exact: Floats) -> float:
    """The rank correlation; 0 if a score is not finite where the exact one is."""
    return 0.0 if bool((np.isfinite(exact) & ~np.isfinite(scores)).any()) else spearman(scores, exact)


class Agreement:
    """Counts when a check is due, and keeps the results: rank correlations, 1.0 = the same order."""

    def __init__(self, least: float) -> None:
        self._least = least
        self._since = SPACING
        self._is_new = False
        self._last: deque[float] = deque(maxlen=_LAST)
        self._total = 0.0
        self.latest: float | None = None
        self.num_checks = 0
        self.num_failed = 0

    def weights_arrived(self) -> None:
        """Note new weights."""
        self._is_new = True

    def is_due(self, num_candidates: int) -> bool:
        """Whether to check some of the candidates that are about to be scored."""
        is_due = self._is_new and self._since >= SPACING
        self._since = num_candidates if is_due else self._since + num_candidates
        self._is_new = self._is_new and not is_due
        return is_due

    def mark(self) -> tuple[int, bool]:
        """The state of counting to the next check."""
        return self._since, self._is_new

    def go_back(self, mark: tuple[int, bool]) -> None:
        """Undo `is_due` calls since the mark: their candidates are not scored after all."""
        self._since, self._is_new = mark

    def note(self, correlation: float) -> None:
        """Take in a check; one without a result (losses equal or not finite) is counted separately."""
        if correlation != correlation:
            self.num_failed += 1
            return
        self._last.append(correlation)
        self.latest = correlation
        self._total += correlation
        self.num_checks += 1

    @property
    def recent(self) -> float:
        """The mean of the last few checks; NaN before the first."""
        return sum(self._last) / len(self._last) if self._last else float("nan")

    @property
    def mean(self) -> float:
        """The mean of all checks; NaN before the first."""
        return self._total / self.num_checks if self.num_checks else float("nan")

    @property
    def is_low(self) -> bool:
        """Whether there are enough checks, and the mean of the last few is too low."""
        return len(self._last) == _LAST and self.recent < self._least

    def forget(self) -> None:
        """Restart: the precision has changed."""
        self._last.clear()
