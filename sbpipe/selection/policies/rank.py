"""`rank`: Selective-Backprop inside a scoring pass, as Composer does it: a fixed number, without replacement,
likelier the higher it ranks.
"""

import numpy as np

from sbpipe.config import SelectionConfig, Traits
from sbpipe.records import Classes, Floats
from sbpipe.selection.policies.uniform import Random
from sbpipe.selection.within import inclusion, ranks_within, systematic


class Rank(Random):
    """Chances in proportion to (rank / n)^beta, beta = 1/keep - 1, which sum to the number kept; no history,
    no cdf.
    """

    traits = Traits()
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
