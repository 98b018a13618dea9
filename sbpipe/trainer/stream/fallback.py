"""Selection without a selector: what the trainer does with a lease when none is left. No forward pass."""

import numpy as np

from sbpipe.config import Config
from sbpipe.data import Order
from sbpipe.records import Ids, Lease, Selection
from sbpipe.selection import build_policy, choose, drawn
from sbpipe.trainer.pacing import Pace
from sbpipe.trainer.stream.scores import ScoreTable

PEER = "fallback"


class Fallback:
    """`stale-scores` asks the policy about the last known scores; what has none is kept at the keep rate."""

    def __init__(self, config: Config, order: Order, table: ScoreTable, pace: Pace | None = None) -> None:
        self._config = config
        self._pace = pace or Pace.of(config)
        self._order = order
        self._table = table

    def answer(self, lease: Lease, step: int) -> tuple[Selection, Ids]:
        """A selection, and the version that scored each kept example (the current step where none did)."""
        example_ids = self._order.ids(lease.epoch, lease.start, lease.stop)
        scores, versions = self._table.lookup(example_ids)
        # Built anew for each lease: a selector may have come, scored and gone since the last one.
        policy = build_policy(self._config.selection)
        policy.restore(*self._table.history)
        judged, classes = self._table.judged(example_ids, scores), self._table.classes
        probability = policy.keep_probability(
            judged, None if classes is None else classes[example_ids], strength=lease.strength
        )
        blind = ~np.isfinite(scores)
        bound = self._config.sync.max_staleness
        if self._config.selection.fallback == "uniform" or not policy.traits.needs_scores:
            blind[:] = True
        elif bound:
            blind |= step + self._pace.depth - versions > bound
        probability[blind] = self._config.selection.keep_rate
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
        # Sent as unscored, or old scores would enter the table as if they were new.
        unscored = np.full(considered, np.nan, np.float32)
        versions = np.where(blind, step, versions)
        return Selection(lease.lease_id, step, unscored, kept, probability[:considered]), versions[kept]
