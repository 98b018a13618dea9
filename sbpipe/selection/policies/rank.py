"""`rank`: Selective-Backprop inside one scoring pass, as Composer does it; no history, no cdf."""

import numpy as np

from sbpipe.config import TRAITS, SelectionConfig
from sbpipe.records import Classes, Floats
from sbpipe.selection.draws import inclusion, ranks_within, systematic
from sbpipe.selection.policies.uniform import Random


class Rank(Random):
    """A fixed number of each pass, with chances in proportion to (rank / n)^beta, beta = 1/keep - 1."""

    traits = TRAITS["rank"]
    draw = staticmethod(systematic)

    def __init__(self, config: SelectionConfig) -> None:
        super().__init__(config)
        self._beta = 1.0 / config.keep - 1.0

    def keep_probability(
        self, scores: Floats, classes: Classes | None = None, *, strength: float = 1.0
    ) -> Floats:
        """The chance of each to be among the kept; a score that is not finite is never kept."""
        finite = np.isfinite(scores)
        weights = ((ranks_within(scores) + 1.0) / max(1, len(scores))) ** self._beta
        return inclusion(np.where(finite, weights, 0.0), self._keep * float(finite.sum()))
