"""`spread`: a set that covers the directions in which the model is wrong, instead of the largest losses.

k-means++ (Arthur and Vassilvitskii 2007) on the residuals of a lease's candidates: each next one is drawn in
proportion to its squared distance from the nearest one that is already kept. A residual close to a kept one
adds little, so its candidate is unlikely to be kept, however large its loss. The origin counts as kept from
the start, so a candidate that the model gets right, whose residual is near zero, is unlikely to be kept too.
"""

import numpy as np
from numpy.typing import NDArray

from sbpipe.config import TRAITS
from sbpipe.records import Classes, Floats
from sbpipe.selection.draws import Mask, inclusion, systematic
from sbpipe.selection.policies.uniform import Random


class Spread(Random):
    """Chooses among all candidates of a lease at once; it has neither history nor weights."""

    traits = TRAITS["spread"]
    draw = staticmethod(systematic)

    def choose_set(
        self,
        scores: Floats,
        residuals: Floats,
        count: int,
        uniform: NDArray[np.float64],
        *,
        strength: float,
        due: Mask,
        passed_over: Mask | None = None,
    ) -> Mask:
        """Keep `count`, those that are `due` first; a candidate without a finite score is never kept."""
        is_open = np.isfinite(scores) & np.isfinite(residuals).all(axis=1)
        if passed_over is not None:
            residuals = np.where(passed_over[:, None], np.float32(0.0), residuals)
            is_last = passed_over & is_open
            # Their residuals are zeroed, so only a uniform draw can keep them; and they are closed if others
            # suffice.
            if int(is_open.sum()) - int(is_last.sum()) >= count:
                is_open &= ~is_last
        return cover(residuals, count, uniform, strength=strength, due=due & is_open, is_open=is_open)

    def keep_probability(
        self, scores: Floats, classes: Classes | None = None, *, keep: float, strength: float = 1.0
    ) -> Floats:
        """Without residuals (remembered scores): in proportion to the residual norm that cross entropy
        implies.

        The loss is -log p of the right class, and the norm is 1 - p, up to a factor of at most sqrt(2).
        """
        finite = np.isfinite(scores)
        wrong = -np.expm1(-np.maximum(np.where(finite, scores, 0.0), 0.0)).astype(np.float64)
        total = float(wrong.sum())
        weights = strength * wrong / total if total > 0 else np.zeros(len(scores))
        weights += (1.0 - strength if total > 0 else 1.0) / max(1, int(finite.sum()))
        return inclusion(np.where(finite, weights, 0.0), keep * float(finite.sum()))


def cover(
    residuals: Floats, count: int, uniform: NDArray[np.float64], *, strength: float, due: Mask, is_open: Mask
) -> Mask:
    """k-means++ of up to `count` rows; each draw is uniform over the remaining rows with chance 1 - strength.

    No sum goes through a threaded BLAS: the number of threads must not change a bit of the result.
    """
    is_open, is_kept = is_open.copy(), np.zeros(len(residuals), bool)
    axes = np.ascontiguousarray(np.where(is_open[:, None], residuals, np.float32(0.0)).T)
    lengths: Floats = np.einsum("an,an->n", axes, axes)
    distances, fresh = lengths.copy(), np.empty_like(lengths)
    forced = np.flatnonzero(due)[:count]
    for number in range(min(count, int(is_open.sum()))):
        if number < len(forced):
            chosen = int(forced[number])
        else:
            chosen = _drawn(distances, is_open, uniform[number], strength)
        is_kept[chosen], is_open[chosen] = True, False
        # |d_j - d_i|^2 = |d_j|^2 + |d_i|^2 - 2 d_j d_i
        np.einsum("an,a->n", axes, -2.0 * axes[:, chosen], out=fresh)
        fresh += lengths
        fresh += lengths[chosen]
        np.minimum(distances, fresh, out=distances)
        # Rounding may leave values slightly below zero, and a kept row must not be drawn again.
        np.maximum(distances, 0.0, out=distances)
        distances[chosen] = 0.0
    return is_kept


def _drawn(distances: Floats, is_open: Mask, uniform: float, strength: float) -> int:
    """One draw by one uniform number: uniform over the remaining rows, or in proportion to the distances."""
    sums = np.cumsum(distances, dtype=np.float64)
    blind = 1.0 if not sums[-1] > 0.0 else 1.0 - strength
    if uniform < blind:
        left = np.flatnonzero(is_open)
        return int(left[min(int(uniform / blind * len(left)), len(left) - 1)])
    # Strictly below the sum: rounding may reach it, and there is no row beyond.
    share = min((uniform - blind) / (1.0 - blind) * sums[-1], np.nextafter(sums[-1], 0.0))
    return int(np.searchsorted(sums, share, side="right"))
