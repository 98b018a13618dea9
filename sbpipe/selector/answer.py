"""From a lease to a selection: order, view, score, policy, coin. One version per lease. Knows no socket."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sbpipe.data import Order
from sbpipe.records import Floats, Ids, Lease, Selection, SelectorStats
from sbpipe.runs.events import EventLog
from sbpipe.runs.spans import Spans
from sbpipe.selector.forward import ForwardPass
from sbpipe.selector.judge import Decision, Judge


class _Considered(NamedTuple):
    """Candidates of one scoring pass: their scores and predictions, and what was decided on them."""

    scores: Floats
    predictions: NDArray[np.int64] | None
    decision: Decision


class Selector:
    """Answers leases, one at a time, with the weights it is told to use."""

    def __init__(
        self,
        order: Order,
        batch_size: int,
        forward: ForwardPass,
        judge: Judge,
        spans: Spans,
        events: EventLog,
    ) -> None:
        self._order, self._batch_size = order, batch_size
        self._forward, self._judge = forward, judge
        self._spans, self._events = spans, events
        self.progress = 0

    @property
    def precision(self) -> str:
        """What it scores in."""
        return self._forward.precision

    @property
    def irreducible(self) -> Floats | None:
        """What is subtracted from the score of each example, by example id; None = nothing."""
        return self._judge.irreducible

    def stats(self) -> SelectorStats:
        """What the trainer wants to know of this selector, as running totals."""
        return self._forward.stats()

    def tune(self) -> None:
        """Measure a little of what is left to "auto"; called between two leases."""
        batch_size = self._forward.tune()
        if batch_size is not None:
            self._batch_size = batch_size
            self.progress += 1

    def answer(self, lease: Lease) -> Selection:
        """Consider the lease's candidates in order until its range ends or enough are kept."""
        self._judge.restore(lease)
        if self._judge.needs_scores:
            self._forward.refresh(lease)
        chunks: list[_Considered] = []
        num_kept = 0
        for start in range(lease.start, lease.stop, self._batch_size):
            example_ids = self._order.ids(lease.epoch, start, min(start + self._batch_size, lease.stop))
            chunks.append(self._consider(lease, example_ids, lease.most - num_kept))
            num_kept += len(chunks[-1].decision.kept)
            # Heartbeats tell it: the trainer knows a hung selector from one that is busy with a long lease.
            self.progress += 1
            if num_kept >= lease.enough:
                break
        selection = self._selection(lease, chunks)
        self._events.write(
            "selection",
            lease=lease.lease_id,
            version=selection.version,
            candidates=len(selection.scores),
            kept=num_kept,
            spans=self._spans.take_recent(),
        )
        return selection

    def _consider(self, lease: Lease, example_ids: Ids, most: int) -> _Considered:
        """Score some candidates and choose among them, up to the `most`-th kept."""
        scores, is_new = self._judge.recall(example_ids, lease.epoch)
        predictions = None
        if is_new.any():
            scores[is_new], found = self._forward.score(example_ids[is_new], lease.epoch)
            # A remembered score comes without a prediction, and predictions are counted for all or for none.
            predictions = found if is_new.all() else None
        with self._spans.span("select"):
            decision = self._judge.choose(lease, example_ids, scores, is_new, most)
        count = decision.num_considered
        return _Considered(scores[:count], None if predictions is None else predictions[:count], decision)

    def _selection(self, lease: Lease, chunks: list[_Considered]) -> Selection:
        needs_scores = self._judge.needs_scores
        decisions = [chunk.decision for chunk in chunks]
        firsts = np.cumsum([0, *(decision.num_considered for decision in decisions[:-1])])
        predictions = [chunk.predictions for chunk in chunks if chunk.predictions is not None]
        return Selection(
            lease_id=lease.lease_id,
            version=self._forward.version if needs_scores else lease.version,
            scores=np.concatenate([chunk.scores for chunk in chunks]),
            kept=np.concatenate(
                [decision.kept + np.int32(first) for decision, first in zip(decisions, firsts, strict=True)]
            ),
            keep_probability=np.concatenate([decision.keep_probability for decision in decisions]),
            stats=self.stats(),
            predicted=self._forward.count(np.concatenate(predictions)) if predictions else None,
            fast_version=self._forward.fast_version if needs_scores and lease.fast_version >= 0 else -1,
        )
