"""How well old or imprecise scores agree with fresh, exact losses: pure functions of two arrays."""

import math

import numpy as np
from numpy.typing import NDArray

from sbpipe.records import Floats

MOST = 8.0
"""The largest weight of an example, in multiples of the median weight of its batch."""


def ranks(values: Floats) -> NDArray[np.float64]:
    """Ranks from 0, ties sharing their mean rank."""
    order = values.argsort()
    ordered = values[order]
    if (ordered[1:] > ordered[:-1]).all():
        # The usual case, without ties, at a fifth of the time.
        found = np.empty(len(values))
        found[order] = np.arange(len(values))
        return found
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts + 1) / 2.0)[inverse]


def spearman(scores: Floats, losses: Floats) -> float:
    """Rank correlation of the pairs that are finite on both sides; NaN when there is nothing to correlate."""
    finite = np.isfinite(scores) & np.isfinite(losses)
    num_finite = int(np.count_nonzero(finite))
    # Two pairs always have a correlation of 1 or -1.
    if num_finite < 3:
        return float("nan")
    if num_finite < len(finite):
        scores, losses = scores[finite], losses[finite]
    a, b = ranks(scores), ranks(losses)
    # Their mean, whatever the ties.
    a -= (num_finite - 1) / 2.0
    b -= (num_finite - 1) / 2.0
    scale = math.sqrt((a @ a) * (b @ b))
    return float(a @ b) / scale if scale > 0 else float("nan")


def mean_error(scores: Floats, losses: Floats) -> float:
    """Mean absolute difference of score and fresh loss over finite pairs; NaN when there are none."""
    difference = np.abs(scores - losses)
    total = float(np.add.reduce(difference))
    if math.isfinite(total):
        return total / len(difference) if len(difference) else float("nan")
    finite = np.isfinite(difference)
    return float(difference[finite].mean()) if finite.any() else float("nan")


def weighted_spearman(scores: Floats, losses: Floats, stands_for: Floats) -> tuple[float, float]:
    """Rank correlation over all candidates, estimated from the kept ones, and its effective number of pairs.

    A kept example stands for 1 / keep probability candidates. Without these weights a choice by score would
    hide the correlation: the scores of kept examples differ little. Pairs that are not finite do not count;
    NaN where there is nothing to correlate.
    """
    known = np.isfinite(scores) & np.isfinite(losses)
    if known.sum() < 3:
        return float("nan"), 0.0
    weights = stands_for[known].astype(np.float64)
    # Limited to a multiple of the median: an example kept with a chance of 1 in 1,000 would outweigh its
    # batch.
    weights = np.minimum(weights, MOST * np.sort(weights)[len(weights) // 2])
    weights /= weights.sum()
    a, b = _centred_ranks(scores[known], weights), _centred_ranks(losses[known], weights)
    scale = float(np.sqrt((weights @ (a * a)) * (weights @ (b * b))))
    found = float(weights @ (a * b)) / scale if scale > 0.0 else float("nan")
    return found, 1.0 / float(weights @ weights)


def _centred_ranks(values: Floats, weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """The midpoint of each value's interval of the weighted cdf, less the mean, which is always 1/2."""
    order = values.argsort()
    if (values[order[1:]] > values[order[:-1]]).all():
        # The usual case, without ties, at a third of the time.
        found, own = np.empty(len(values)), weights[order]
        found[order] = np.cumsum(own) - 0.5 * own - 0.5
        return found
    ordered, inverse = np.unique(values, return_inverse=True)
    mass = np.bincount(inverse, weights, minlength=len(ordered))
    return (np.cumsum(mass) - 0.5 * mass)[inverse] - 0.5
