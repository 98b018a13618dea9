"""Which candidates of a lease are doubted: those whose last score was that of a wrong label. Pure."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from sbpipe.records import Ids, Lease
from sbpipe.selection.doubt import packed
from sbpipe.selection.draws import Mask
from sbpipe.trainer.stream.scores import ScoreTable


class Doubt(NamedTuple):
    """What the next leases do about wrong labels."""

    strength: float
    """How sharply they choose among candidates whose last scores are known."""
    above: float
    """The score above which a candidate is doubted."""


def doubted(table: ScoreTable, example_ids: Ids, above: float) -> tuple[Mask, float]:
    """Which candidates are doubted, and the share of the candidates that have a last score."""
    scores, versions = table.lookup(example_ids)
    return scores > np.float32(above), float(np.mean(versions >= 0))


def doubting(lease: Lease, doubt: Doubt, table: ScoreTable, example_ids: Ids) -> Lease:
    """The lease with its doubted candidates; `example_ids` are those it covers."""
    is_doubted, known = doubted(table, example_ids, doubt.above)
    # A candidate without a last score cannot be doubted: for these, selection stays as uniform as the share
    # of wrong labels asks.
    strength = lease.strength + known * (doubt.strength - lease.strength)
    return replace(lease, strength=strength, doubted=packed(is_doubted), doubt_above=doubt.above)
