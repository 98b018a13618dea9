"""Selection without a selector: how the trainer answers a lease when no selector is left, and how it fills a
late train batch. No forward pass.
"""

import numpy as np

from sbpipe.config import Config
from sbpipe.data import Order
from sbpipe.records import Floats, Ids, Lease, Selection
from sbpipe.selection import build_policy, choose, drawn
from sbpipe.selection.doubt import passed_over
from sbpipe.selection.draws import Mask
from sbpipe.trainer.pacing import SyncPace
from sbpipe.trainer.stream.scores import ScoreTable

PEER = "fallback"
FILL = "fill"
"""The name that holds the leases of fills while they are answered."""
ENOUGH_KNOWN = 0.9
"""Share of candidates with recent scores from which a fill is chosen by these scores."""


class Fallback:
    """`stale-scores`: the policy judges the last known scores; candidates without one are kept at the keep
    rate.
    """

    def __init__(self, config: Config, order: Order, table: ScoreTable, sync: SyncPace | None = None) -> None:
        self._config = config
        self._sync = sync or SyncPace.of(config)
        self._order = order
        self._table = table

    def answer(self, lease: Lease, step: int) -> tuple[Selection, Ids]:
        """A selection, and the version that scored each kept example (the current step where none did)."""
        example_ids = self._order.ids(lease.epoch, lease.start, lease.stop)
        scores, versions = self._table.lookup(example_ids)
        # Built for each lease: a selector may have come, scored and gone since the last one.
        policy = build_policy(self._config.selection)
        policy.restore(*self._table.history)
        judged, classes = self._table.judged(example_ids, scores), self._table.classes
        probability = policy.keep_probability(
            judged,
            None if classes is None else classes[example_ids],
            keep=lease.keep,
            strength=lease.strength,
        )
        blind = ~self._is_known(scores, versions, step)
        probability[blind] = lease.keep
        if (is_over := passed_over(lease, scores)) is not None:
            probability[is_over] = 0.0
        probability, is_kept = drawn(
            policy,
            probability,
            example_ids,
            seed=self._config.seed,
            epoch=lease.epoch,
            floor=self._config.selection.floor,
            keep_all=lease.keep_all,
        )
        considered, kept = choose(is_kept, lease.enough)
        # Reported as unscored, or old scores would enter the table as new ones.
        unscored = np.full(considered, np.nan, np.float32)
        versions = np.where(blind, step, versions)
        return Selection(lease.lease_id, step, unscored, kept, probability[:considered]), versions[kept]

    def knows(self, epoch: int, start: int, stop: int, *, step: int, recent: int) -> bool:
        """Whether a fill may choose among these candidates: most were scored in the last `recent` steps."""
        scores, versions = self._table.lookup(self._order.ids(epoch, start, stop))
        is_recent = self._is_known(scores, versions, step) & (step - versions <= recent)
        return bool(is_recent.mean() >= ENOUGH_KNOWN)

    def take_all(self, lease: Lease, step: int, *, passes_over: bool) -> tuple[Selection, Ids]:
        """Keep every candidate of a lease, unscored; with `passes_over`, not those with probably wrong
        labels.

        Each gets the keep probability `keep`, as if drawn uniformly. Weighed by target / keep probability, a
        fill then counts as much as a selected example does on average.
        """
        count = lease.num_candidates
        probability = np.full(count, 1.0 if lease.keep_all else lease.keep, np.float32)
        unscored = np.full(count, np.nan, np.float32)
        kept = np.arange(count, dtype=np.int32)
        if passes_over and lease.doubted is not None:
            scores, _ = self._table.lookup(self._order.ids(lease.epoch, lease.start, lease.stop))
            kept = kept[~np.asarray(passed_over(lease, scores))]
        return Selection(lease.lease_id, step, unscored, kept, probability), np.full(len(kept), step)

    def _is_known(self, scores: Floats, versions: Ids, step: int) -> Mask:
        """Which candidates the policy may judge by their last scores."""
        config = self._config
        if config.selection.fallback == "uniform" or not config.selection.traits.needs_scores:
            return np.zeros(len(scores), bool)
        bound = config.sync.max_staleness
        is_old = step + self._sync.depth - versions > bound if bound else False
        is_known: Mask = np.isfinite(scores) & ~np.asarray(is_old)
        return is_known
