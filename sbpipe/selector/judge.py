"""Which candidates are kept: remembered scores, the policy, the coin. Knows no model, no socket."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sbpipe.records import Classes, Floats, Ids, Lease
from sbpipe.selection import (
    Policy,
    ScoreCache,
    SetPolicy,
    TrainedLosses,
    choose,
    drawn,
    is_due,
    set_coins,
)
from sbpipe.selection.doubt import passed_over
from sbpipe.selection.draws import Mask


class Decision(NamedTuple):
    """The first `num_considered` of some candidates were considered, those at the positions `kept` kept."""

    num_considered: int
    kept: NDArray[np.int32]
    keep_probability: Floats


class Judge:
    """Decides on candidates by their scores.

    `trained` has the losses of each example's last training, for a policy that uses them; `irreducible` is
    subtracted from each score; `classes_of` gives classes where the policy ranks within them.
    """

    def __init__(
        self,
        policy: Policy,
        cache: ScoreCache,
        *,
        seed: int,
        floor: int = 0,
        trained: TrainedLosses | None = None,
        irreducible: Floats | None = None,
        classes_of: Callable[[Ids], Classes | None] | None = None,
    ) -> None:
        self._policy, self._cache, self._trained = policy, cache, trained
        self._seed, self._floor = seed, floor
        self._classes_of = classes_of
        self.irreducible = irreducible

    @property
    def needs_scores(self) -> bool:
        """Whether candidates go through the model at all."""
        return self._policy.traits.needs_scores

    @property
    def chooses_sets(self) -> bool:
        """Whether all candidates of a lease are scored before any is chosen."""
        return self._policy.traits.chooses_sets

    def restore(self, lease: Lease) -> None:
        """Take over the run's history, where the lease brings it."""
        if lease.history is not None:
            self._policy.restore(lease.history, lease.history_classes)

    def recall(self, example_ids: Ids, epoch: int) -> tuple[Floats, Mask]:
        """The scores known without the model, and which candidates have to go through it."""
        nobody = np.zeros(len(example_ids), bool)
        if self._trained is not None:
            return self._trained.of(example_ids), nobody
        if not self.needs_scores:
            return np.full(len(example_ids), np.nan, np.float32), nobody
        return self._cache.recall(example_ids, epoch)

    def choose(self, lease: Lease, example_ids: Ids, scores: Floats, is_new: Mask, most: int) -> Decision:
        """Decide on candidates in order, up to the `most`-th kept, and remember those considered."""
        classes = None if self._classes_of is None else self._classes_of(example_ids)
        # The scores that are sent stay losses, which the trainer compares with fresh ones.
        judged = scores if self.irreducible is None else scores - self.irreducible[example_ids]
        probability = self._policy.keep_probability(judged, classes, keep=lease.keep, strength=lease.strength)
        probability, is_kept = drawn(
            self._policy,
            probability,
            example_ids,
            seed=self._seed,
            epoch=lease.epoch,
            floor=self._floor,
            keep_all=lease.keep_all,
        )
        count, kept = choose(is_kept, most)
        # Candidates after the last considered one are leased and scored again in this epoch: they must not
        # enter the history twice.
        self._policy.consider(judged[:count], None if classes is None else classes[:count])
        new = np.flatnonzero(is_new[:count])
        self._cache.remember(example_ids[new], scores[new], lease.epoch)
        return Decision(count, kept, probability[:count])

    def choose_set(self, lease: Lease, example_ids: Ids, scores: Floats, residuals: Floats) -> Decision:
        """Decide on all candidates of a lease at once, all freshly scored; as many are kept as
        it asks for.
        """
        policy, count = self._policy, len(scores)
        assert isinstance(policy, SetPolicy)
        is_kept = policy.choose_set(
            scores,
            residuals,
            lease.enough,
            set_coins(self._seed, lease.epoch, lease.start, lease.enough),
            strength=lease.strength,
            due=is_due(self._seed, lease.epoch, example_ids, self._floor),
            passed_over=passed_over(lease, scores),
        )
        policy.consider(scores)
        self._cache.remember(example_ids, scores, lease.epoch)
        # The keep probability of one candidate in a set is not known: all get the mean of the set.
        chance = np.full(count, lease.enough / max(1, count), np.float32)
        return Decision(count, np.flatnonzero(is_kept).astype(np.int32), np.minimum(chance, np.float32(1.0)))
