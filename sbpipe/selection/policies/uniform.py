"""Policies that do not use scores: `full` (the paper's Traditional) and `random`."""

import numpy as np

from sbpipe.config import TRAITS, SelectionConfig
from sbpipe.records import Classes, Floats
from sbpipe.selection.draws import independent

_NOTHING: Floats = np.empty(0, np.float32)


class Random:
    """Every candidate is kept with the same probability."""

    traits = TRAITS["random"]
    draw = staticmethod(independent)

    def __init__(self, config: SelectionConfig) -> None:
        pass

    def keep_probability(
        self, scores: Floats, classes: Classes | None = None, *, keep: float, strength: float = 1.0
    ) -> Floats:
        """`keep` for every candidate."""
        return np.full(len(scores), keep, np.float32)

    def consider(self, scores: Floats, classes: Classes | None = None) -> None:
        """Nothing to remember."""

    def state(self) -> Floats:
        """Nothing to hand over."""
        return _NOTHING

    def restore(self, state: Floats, classes: Classes | None = None) -> None:
        """Nothing to take over."""


class Full(Random):
    """Every candidate is kept."""

    traits = TRAITS["full"]

    def keep_probability(
        self, scores: Floats, classes: Classes | None = None, *, keep: float, strength: float = 1.0
    ) -> Floats:
        """1 for every candidate."""
        return np.ones(len(scores), np.float32)
