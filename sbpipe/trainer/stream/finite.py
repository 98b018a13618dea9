"""Whether scores are still finite: those of a model that has diverged are not, and no batch would ever fill.

Judged from the answers of selectors, so that a run ends with the first such lease and not when its candidates
are used up. Pure; it must not know leases or selectors.
"""

import math

import numpy as np

from sbpipe.records import Floats
from sbpipe.trainer.step_outcome import DivergedError

FEWEST = 64
"""Candidates in a row without a finite score before the run counts as diverged: some examples of a data set
may be broken, but not that many in a row.
"""


class FiniteScores:
    """Counts candidates in a row whose scores are not finite."""

    def __init__(self) -> None:
        self._in_a_row = 0

    def see(self, scores: Floats, step: int) -> None:
        """Take in the scores of one lease; raises if none of the last candidates had a finite one."""
        # In nearly every lease the first score decides, without a pass over all.
        is_one = len(scores) > 0 and (math.isfinite(scores[0]) or bool(np.isfinite(scores).any()))
        self._in_a_row = 0 if is_one else self._in_a_row + len(scores)
        if self._in_a_row >= FEWEST:
            raise DivergedError(f"the scores of the last {self._in_a_row} candidates are not finite", step)
