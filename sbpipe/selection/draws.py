"""From keep probabilities to kept candidates, and chances that sum to a fixed number. Knows no policy."""

import numpy as np
from numpy.typing import NDArray

from sbpipe.records import Floats

Mask = NDArray[np.bool_]


def independent(probability: Floats, uniform: NDArray[np.float64]) -> Mask:
    """Each by its own coin."""
    return uniform < probability


def systematic(probability: Floats, uniform: NDArray[np.float64]) -> Mask:
    """As many as the chances sum to, up to rounding, each candidate with exactly its own chance.

    A candidate is kept if the running sum of chances passes an integer at it. One coin, the first
    candidate's, is the start of the sum.
    """
    if not len(probability):
        return np.zeros(0, bool)
    passed = np.floor(np.cumsum(probability, dtype=np.float64) + uniform[0])
    is_kept: Mask = np.diff(passed, prepend=np.floor(uniform[0])) > 0
    return is_kept


def share_of(keep: float, count: int) -> int:
    """The number of `count` candidates that a keep rate amounts to; at least one, if there are any."""
    return min(count, max(1, round(keep * count)))


def ranks_within(scores: Floats) -> NDArray[np.intp]:
    """Ranks from 0, the highest score last; scores that are not finite rank lowest.

    Of equal scores the earlier one ranks higher.
    """
    filled = np.where(np.isfinite(scores), scores, -np.inf)
    # A stable sort ranks the earlier of two equal scores lower; sorting from the back ranks it higher.
    order = np.argsort(filled[::-1], kind="stable")
    ranks = np.empty(len(scores), np.intp)
    ranks[len(scores) - 1 - order] = np.arange(len(scores))
    return ranks


def inclusion(weights: NDArray[np.float64], total: float) -> Floats:
    """Chances in proportion to weights that sum to `total`, none above 1."""
    chances = np.zeros(len(weights))
    open_: Mask = weights > 0
    total = min(total, float(open_.sum()))
    # A chance above 1 becomes 1, and the excess is shared out again, which may lift others above 1.
    while open_.any():
        chances[open_] = (
            weights[open_] * (total - float((~open_ & (chances >= 1.0)).sum())) / weights[open_].sum()
        )
        above = open_ & (chances >= 1.0)
        if not above.any():
            break
        chances[above] = 1.0
        open_ &= ~above
    return chances.astype(np.float32)
