"""Which candidates of a lease are doubted: those whose last score was that of a wrong label. Pure."""

from typing import NamedTuple

import numpy as np

from sbpipe.records import Ids
from sbpipe.selection.draws import Mask
from sbpipe.trainer.stream.scores import ScoreTable


class Doubt(NamedTuple):
    """What the next leases do about wrong labels."""

    strength: float
    """How sharply they choose among candidates whose last scores are known."""
    above: float
    """The score above which a candidate is doubted."""


def doubted(table: ScoreTable, example_ids: Ids, above: float) -> tuple[Mask, float]:
    """Who is doubted, and the share of the candidates that have a last score at all."""
    scores, versions = table.lookup(example_ids)
    return scores > np.float32(above), float(np.mean(versions >= 0))
