"""`topk`: only the highest scores of each scoring pass, as in many short scripts."""

import numpy as np

from sbpipe.config import TRAITS
from sbpipe.records import Classes, Floats
from sbpipe.selection.draws import ranks_within, share_of
from sbpipe.selection.policies.uniform import Random


class TopK(Random):
    """The `keep` share of a pass with the highest scores is kept, the rest is not.

    Of equal scores the earlier one is kept.
    """

    traits = TRAITS["topk"]

    def keep_probability(
        self, scores: Floats, classes: Classes | None = None, *, keep: float, strength: float = 1.0
    ) -> Floats:
        """1 or 0; a score that is not finite is never kept."""
        count = share_of(keep, int(np.isfinite(scores).sum()))
        return (ranks_within(scores) >= len(scores) - count).astype(np.float32)
