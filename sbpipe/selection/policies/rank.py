"""`rank`: Selective-Backprop inside one scoring pass, as Composer does it; no history, no cdf."""

import numpy as np

from sbpipe.config import TRAITS
from sbpipe.records import Classes, Floats
from sbpipe.selection.draws import inclusion, ranks_within, systematic
from sbpipe.selection.policies.uniform import Random


class Rank(Random):
    """A fixed number of each pass, with chances in proportion to (rank / n)^beta, beta = 1/keep - 1."""

    traits = TRAITS["rank"]
    draw = staticmethod(systematic)

    def keep_probability(
        self, scores: Floats, classes: Classes | None = None, *, keep: float, strength: float = 1.0
    ) -> Floats:
        """The chance of each to be among the kept; a score that is not finite is never kept."""
        finite = np.isfinite(scores)
        weights = ((ranks_within(scores) + 1.0) / max(1, len(scores))) ** (1.0 / keep - 1.0)
        return inclusion(np.where(finite, weights, 0.0), keep * float(finite.sum()))
