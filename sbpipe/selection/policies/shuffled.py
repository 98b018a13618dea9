"""`shuffled`: the cost of `sb` without its information. The control arm of a comparison."""

import zlib

import numpy as np

from sbpipe.config import TRAITS
from sbpipe.records import Classes, Floats
from sbpipe.selection.policies.sb import SelectiveBackprop


class Shuffled(SelectiveBackprop):
    """`sb`'s keep probabilities, dealt out at random among the candidates of one scoring pass.

    The same forward passes, the same keep rate and the same spread of probabilities; only the link from an
    example to its own score is cut. The deal is drawn from the scores themselves, so that every process that
    sees them deals alike.
    """

    traits = TRAITS["shuffled"]

    def keep_probability(
        self, scores: Floats, classes: Classes | None = None, *, keep: float, strength: float = 1.0
    ) -> Floats:
        """cdf^beta of another candidate; a score that is not finite is never kept and not dealt out."""
        probability = super().keep_probability(scores, classes, keep=keep)
        finite = np.flatnonzero(np.isfinite(scores))
        dealer = np.random.Generator(np.random.PCG64(zlib.crc32(scores.tobytes())))
        probability[finite] = probability[dealer.permutation(finite)]
        return probability
