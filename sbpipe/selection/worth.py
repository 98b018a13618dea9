"""An estimate of what selection can be worth, from the scores of candidates alone: pure functions.

If all candidates have equally large gradients, no choice among them is better than any other. Their
inequality is one number, the effective share ESS = mean(g)² / mean(g²) of their residual norms g = ‖d loss /
d outputs‖: 1 = all equal, 0.2 = as if a fifth of them made up the whole gradient. Over 18 settings its rank
correlation with the measured worth k was -0.66, fitted after the fact: a tendency, not a measurement.
"""

from typing import NamedTuple

import numpy as np

from sbpipe.records import Floats

FEWEST = 64
"""The fewest scores for an estimate."""


class Effective(NamedTuple):
    """The effective share of the candidates, and the standard error of this estimate."""

    share: float
    error: float


def residual_norms(scores: Floats, *, loss: str, by: str, label_smoothing: float = 0.0) -> Floats | None:
    """Norms up to a common factor, which does not change the effective share; None = not known.

    Cross entropy gives the probability of the right class, p = exp(-loss), and the norm lies between 1 - p
    and sqrt(2) (1 - p). A squared error is the square of its norm. For other losses, and for a smoothed one,
    the norm cannot be found from the loss.
    """
    known = scores[np.isfinite(scores)]
    if by == "gradient":
        return known
    if loss == "cross_entropy" and label_smoothing == 0.0:
        cross: Floats = -np.expm1(-np.maximum(known, 0.0))
        return cross
    if loss == "mse":
        squared: Floats = np.sqrt(np.maximum(known, 0.0))
        return squared
    return None


def effective_share(norms: Floats | None) -> Effective | None:
    """The estimate and, by the delta method, its standard error; None if too little is known."""
    if norms is None or len(norms) < FEWEST:
        return None
    g = norms.astype(np.float64)
    mean, square = float(g.mean()), float((g * g).mean())
    if square <= 0.0:
        return None
    share = mean * mean / square
    # The influence of one candidate on the estimate: d share / d mean and d share / d square, times its
    # deviation.
    moves = 2.0 * mean / square * (g - mean) - share / square * (g * g - square)
    return Effective(share, float(moves.std()) / float(np.sqrt(len(g))))
