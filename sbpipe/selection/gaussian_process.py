"""Predicted scores (the paper's section 3.3): which scores will cross the threshold. Knows no policy.

Scores of one epoch count by rank only, so neither the decrease of the loss nor its unit or sign matters.
With Phi the normal cdf, t the epochs that were scored, e the present one, and x_t an example's rank share in
epoch t as a normal deviate (Phi(x_t) = share):

    x ~ N(0, K),  K(t, t') = (1 - noise) exp(-|t - t'| / length), and 1 on the diagonal
    mean = k' K^-1 x,  deviation^2 = 1 - k' K^-1 k,  k = (1 - noise) exp(-|e - t| / length),
        over the epochs the example was scored in
    chance to cross the threshold h, Phi(h) = 1 - keep:  Phi((mean - h) / deviation)

All examples are draws of one process. So length and noise are fitted by maximum likelihood over all
remembered scores, for which the sums of x x' suffice. Policies rank a loss among losses, so `recall` returns
the last scored epoch's loss at rank share Phi(h + (mean - h) usual / deviation): it grows with the chance,
and is the loss at `mean` for an example with the usual history. No weight in k' K^-1 is negative: a higher
score never predicts a lower one.

No sum over examples goes through a threaded BLAS: the number of threads must not change a bit of the result.
"""

from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sbpipe.records import Floats, Ids

SPAN = 8
"""Scored epochs that are remembered: each is one bit of the byte that tells when an example was scored."""
LENGTHS = 2.0 ** np.arange(10, -2, -1)
"""Epochs after which the correlation of scores has fallen to 1/e, and ..."""
NOISES = np.array([0.02, 0.05, 0.1, 0.2, 0.4, 0.8])
"""... the share of their variance that is noise; least first, so that the last score is trusted most."""
_EQUAL = 1e-6
"""Log-likelihoods per example closer than this count as equal: one epoch alone cannot tell lengths apart."""
_DEVIATES = np.linspace(-6.0, 6.0, 1201)
_SHARES = np.array([NormalDist().cdf(deviate) for deviate in _DEVIATES])

Doubles = NDArray[np.float64]


class Ranked(NamedTuple):
    """The scores of one epoch as normal deviates of their rank shares (NaN = not scored).

    And the way back: the score at each of `_DEVIATES`.
    """

    deviates: Floats
    scores: Doubles


def rank(scores: Floats) -> Ranked:
    """From scores (NaN = not scored; at least one is) to deviates; equal scores get equal deviates."""
    known = np.isfinite(scores)
    values, place, counts = np.unique(scores[known], return_inverse=True, return_counts=True)
    # The midpoint of each rank: shares of 0 and 1 would have infinite deviates.
    shares = (np.cumsum(counts) - counts / 2) / len(place)
    deviates = np.full(len(scores), np.nan, np.float32)
    deviates[known] = np.interp(shares, _SHARES, _DEVIATES)[place]
    return Ranked(deviates, np.interp(_SHARES, shares, values))


class Histories:
    """The remembered scores of all examples, grouped by the epochs in which they were scored."""

    def __init__(self, epochs: list[int], deviates: list[Floats]) -> None:
        known = ~np.isnan(deviates)
        self._codes = np.packbits(known, axis=0, bitorder="little")[0]
        counts = np.bincount(self._codes, minlength=2**SPAN)
        patterns = np.flatnonzero(counts)
        self.epochs = np.array(epochs, np.float64)
        self.deviates: Doubles = np.where(known, deviates, np.float64(0.0))
        self.pattern_of = np.searchsorted(patterns, np.arange(2**SPAN))[self._codes]
        """Of every example: the index of its pattern below."""
        self.masks: Doubles = (patterns[:, None] >> np.arange(len(epochs)) & 1).astype(np.float64)
        """Of every pattern: 1 for an epoch that was scored, 0 for one that was not."""
        self.counts = counts[patterns]

    def moments(self) -> Doubles:
        """Of every pattern: the sum of x x' over its examples, 0 where an epoch is missing."""
        ordered = self.deviates[:, np.argsort(self._codes, kind="stable")]
        blocks = np.split(ordered, np.cumsum(self.counts)[:-1], axis=1)
        # einsum without `optimize` does not call BLAS; see the module's docstring.
        return np.stack([np.einsum("in,jn->ij", block, block) for block in blocks])


def gram(epochs: Doubles, length: Doubles, noise: Doubles) -> Doubles:
    """K for every pair of length and noise."""
    apart = np.abs(epochs[:, None] - epochs)
    decay = np.exp(-apart / length[:, None, None])
    return np.where(apart == 0.0, 1.0, (1.0 - noise[:, None, None]) * decay)


def _only(matrices: Doubles, masks: Doubles) -> Doubles:
    """With the rows and columns of missing epochs replaced by those of the identity.

    Then determinant and inverse are those of the remaining epochs.
    """
    return matrices * masks[..., :, None] * masks[..., None, :] + np.eye(masks.shape[-1]) * (
        1.0 - masks[..., None, :]
    )


def log_likelihood(histories: Histories, length: Doubles, noise: Doubles) -> Doubles:
    """Of all remembered scores, under every pair of length and noise, up to a constant."""
    grams, total = gram(histories.epochs, length, noise), np.zeros(len(length))
    for mask, count, moment in zip(histories.masks, histories.counts, histories.moments(), strict=True):
        matrices = _only(grams, mask)
        total -= 0.5 * (
            count * np.linalg.slogdet(matrices)[1] + (np.linalg.inv(matrices) * moment).sum((1, 2))
        )
    return total


def fit(histories: Histories) -> tuple[float, float]:
    """The most likely length and noise; of equal ones, those that trust the last score most."""
    length, noise = (grid.ravel() for grid in np.meshgrid(LENGTHS, NOISES, indexing="ij"))
    likelihood = log_likelihood(histories, length, noise)
    # The first of those that are practically equal: the grid begins with pairs that trust the last score
    # most.
    best = int(np.argmax(likelihood >= likelihood.max() - _EQUAL * histories.counts.sum()))
    return float(length[best]), float(noise[best])


def predict(histories: Histories, epoch: int, length: float, noise: float, threshold: float) -> Doubles:
    """Of every example h + (mean - h) usual / deviation; NaN for one that was never scored."""
    matrices = _only(gram(histories.epochs, np.array([length]), np.array([noise])), histories.masks)
    towards = histories.masks * (1.0 - noise) * np.exp(-np.abs(epoch - histories.epochs) / length)
    weights = np.linalg.solve(matrices, towards[:, :, None])[:, :, 0]
    deviation = np.sqrt(1.0 - (towards * weights).sum(1))
    is_known = histories.masks.any(1)
    usual = deviation[np.argmax(histories.counts * is_known)]
    scale = np.where(is_known, usual / deviation, np.nan)
    mean = np.zeros(len(histories.pattern_of))
    # Epoch by epoch, not as a matrix product: the order in which BLAS sums depends on its threads.
    for weight, deviates in zip(weights.T, histories.deviates, strict=True):
        mean += weight[histories.pattern_of] * deviates
    predicted: Doubles = threshold + (mean - threshold) * scale[histories.pattern_of]
    return predicted


class GaussianProcess:
    """Remembers the last `SPAN` scored epochs, and predicts scores when an epoch begins."""

    def __init__(self, num_examples: int, keep: float) -> None:
        self._threshold = float(np.interp(1.0 - keep, _SHARES, _DEVIATES))
        self._ranked: dict[int, Ranked] = {}
        self._latest = self._predicted_for = -1
        self._scores: Floats = np.full(num_examples, np.nan, np.float32)
        self._known: Floats = self._scores.copy()
        self._fitted: tuple[float, float] | None = None

    def remember(self, example_ids: Ids, scores: Floats, scored_epoch: int) -> None:
        """Take in new scores; whatever their lease, they are no older than the latest scored epoch."""
        if scored_epoch > self._latest:
            self._rank_latest()
            self._latest = scored_epoch
            self._scores = np.full_like(self._scores, np.nan)
        self._scores[example_ids] = self._known[example_ids] = scores
        self._fitted = None

    def recall(self, example_ids: Ids, epoch: int) -> Floats:
        """The predicted score, or the one remembered since this epoch began."""
        if epoch > self._predicted_for:
            self._predicted_for = epoch
            self._predict(epoch)
        return self._known[example_ids]

    def _rank_latest(self) -> None:
        # A fit is valid until new scores arrive, so without one the latest epoch has scores not yet ranked.
        if self._latest >= 0 and self._fitted is None:
            self._ranked[self._latest] = rank(self._scores)
            if len(self._ranked) > SPAN:
                del self._ranked[min(self._ranked)]

    def _predict(self, epoch: int) -> None:
        self._rank_latest()
        if not self._ranked:
            return
        histories = Histories(list(self._ranked), [ranked.deviates for ranked in self._ranked.values()])
        if self._fitted is None:
            self._fitted = fit(histories)
        deviates = predict(histories, epoch, *self._fitted, self._threshold)
        self._known = np.interp(deviates, _DEVIATES, self._ranked[self._latest].scores).astype(np.float32)
