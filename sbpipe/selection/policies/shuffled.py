"""`shuffled`: the cost of `sb` without its information. The control arm of a comparison."""

import zlib

import numpy as np

from sbpipe.config import TRAITS
from sbpipe.records import Classes, Floats
from sbpipe.selection.policies.sb import SelectiveBackprop


class Shuffled(SelectiveBackprop):
    """`sb`'s keep probabilities, permuted at random among the candidates of one scoring pass.

    Forward passes, keep rate and distribution of probabilities are the same; only the link between an example
    and its own score is removed. The permutation is seeded by the scores, so that every process that sees
    them makes the same one.
    """

    traits = TRAITS["shuffled"]

    def keep_probability(
        self, scores: Floats, classes: Classes | None = None, *, keep: float, strength: float = 1.0
    ) -> Floats:
        """cdf^beta of another candidate; a candidate without a finite score is never kept, nor part of the
        permutation.
        """
        probability = super().keep_probability(scores, classes, keep=keep)
        finite = np.flatnonzero(np.isfinite(scores))
        dealer = np.random.Generator(np.random.PCG64(zlib.crc32(scores.tobytes())))
        probability[finite] = probability[dealer.permutation(finite)]
        return probability
