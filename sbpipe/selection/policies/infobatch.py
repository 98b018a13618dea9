"""`infobatch`: no scoring pass. Examples that had a low loss when last trained are dropped at random.

Qin et al., *InfoBatch* (2024). Its scores are the losses of each example's last training step, which only the
trainer's process knows, so both roles must be one (mode `inline`).
"""

import numpy as np
from numpy.typing import NDArray

from sbpipe.config import TRAITS, SelectionConfig
from sbpipe.records import Classes, Floats, Ids
from sbpipe.selection.draws import independent
from sbpipe.selection.history import History
from sbpipe.selection.policies.base import HistoryPolicy

_LEAST_CHANCE = 0.05
"""Limits the weights, 1 / chance, to 20."""


class TrainedLosses:
    """The loss of each example when it was last trained; NaN = never."""

    def __init__(self, num_examples: int) -> None:
        self._losses: Floats = np.full(num_examples, np.nan, np.float32)

    def see(self, example_ids: Ids, losses: Floats) -> None:
        """Take in the losses of a train batch; of an example that occurs twice, the last one counts."""
        self._losses[example_ids] = losses

    def of(self, example_ids: Ids) -> Floats:
        """The last losses of these examples."""
        return self._losses[example_ids]

    def state(self) -> NDArray[np.float32]:
        """For the checkpoint."""
        return self._losses.copy()

    def restore(self, state: NDArray[np.float32]) -> None:
        """Go on from a checkpoint."""
        self._losses[:] = state


class InfoBatch(HistoryPolicy):
    """Examples below the mean loss are kept with one common chance, all others with certainty.

    The chance is such that a share `keep` of all is kept, as far as dropping examples below the mean allows.
    A kept example has the weight 1 / chance, so that the mean gradient is that of all.
    """

    traits = TRAITS["infobatch"]
    draw = staticmethod(independent)

    def __init__(self, config: SelectionConfig) -> None:
        self._history = History(config.history)

    def keep_probability(
        self, scores: Floats, classes: Classes | None = None, *, keep: float, strength: float = 1.0
    ) -> Floats:
        """1, or the common chance below the mean of the recent losses."""
        probability: Floats = np.ones(len(scores), np.float32)
        known = self._history.state()
        if len(known):
            mean = known.mean()
            share = float((known < mean).mean())
            # From keep = (1 - share) + share * chance: all at or above the mean are kept.
            chance = max(_LEAST_CHANCE, 1.0 - (1.0 - keep) / share) if share > 0 else 1.0
            # A comparison with NaN is false: an example that was never trained is kept.
            probability[scores < mean] = chance
        return probability
