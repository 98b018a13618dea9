"""`kath18`: importance sampling by loss or gradient norm once it pays (Katharopoulos and Fleuret 2018)."""

import numpy as np

from sbpipe.config import TRAITS, SelectionConfig
from sbpipe.records import Classes, Floats
from sbpipe.selection.draws import inclusion, systematic
from sbpipe.selection.history import History
from sbpipe.selection.policies.base import HistoryPolicy


class Kath18(HistoryPolicy):
    """A fixed number of each pass, drawn in proportion to the score, or uniformly until that pays.

    With g the scores divided by their sum, tau = sqrt(n sum g^2) is the factor by which a uniform batch would
    have to be larger for the same variance. A step costs one forward pass for every candidate and the
    equivalent of three for every trained example, so importance sampling pays if tau > (1 + 3 keep) / (3
    keep). tau is computed over the last `selection.history` scores.
    """

    traits = TRAITS["kath18"]
    draw = staticmethod(systematic)

    def __init__(self, config: SelectionConfig) -> None:
        self._history = History(config.history)

    @property
    def tau(self) -> float:
        """How many times larger a uniform batch of the same variance would be; 1.0 without scores."""
        known = self._history.state().astype(np.float64)
        total = known.sum()
        return float(np.sqrt(len(known) * ((known / total) ** 2).sum())) if total > 0 else 1.0

    def keep_probability(
        self, scores: Floats, classes: Classes | None = None, *, keep: float, strength: float = 1.0
    ) -> Floats:
        """In proportion to the score once it pays, `keep` before; a score that is not finite is
        never kept.
        """
        finite = np.isfinite(scores)
        weights = np.where(
            finite, np.maximum(scores, 0.0) if self.tau > (1.0 + 3.0 * keep) / (3.0 * keep) else 1.0, 0.0
        )
        return inclusion(weights, keep * float(finite.sum()))
