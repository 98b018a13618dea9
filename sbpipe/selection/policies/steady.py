"""`steady`: Selective-Backprop for old scores. The trainer weighs examples by fresh losses."""

import numpy as np

from sbpipe.config import TRAITS
from sbpipe.records import Classes, Floats
from sbpipe.selection.policies.sb import SelectiveBackprop


class Steady(SelectiveBackprop):
    """Keep probability = strength * cdf^beta + (1 - strength) * keep: the same keep rate at every strength.

    The strength comes with each lease from the trainer, which alone knows the progress and health of
    training.
    """

    traits = TRAITS["steady"]

    def keep_probability(
        self, scores: Floats, classes: Classes | None = None, *, keep: float, strength: float = 1.0
    ) -> Floats:
        """Between uniform (strength 0) and `sb` (strength 1); a score that is not finite is never kept."""
        sharp = super().keep_probability(scores, classes, keep=keep)
        probability: Floats = np.float32(strength) * sharp + np.float32(1.0 - strength) * np.float32(keep)
        # Once more: the uniform part was added to them too.
        probability[~np.isfinite(scores)] = 0.0
        return probability
