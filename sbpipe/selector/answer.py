"""From a lease to a selection: order, view, score, policy, coin. One version per lease. Knows no socket."""

import time
from collections.abc import Generator, Iterable
from contextlib import closing
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sbpipe.data import Order
from sbpipe.errors import PeerRejected
from sbpipe.records import Floats, Ids, Lease, Selection, SelectorStats
from sbpipe.runs.events import EventLog
from sbpipe.runs.spans import Spans
from sbpipe.scoring import Scored
from sbpipe.scoring.queued import Queued
from sbpipe.selection.draws import Mask
from sbpipe.selector.ahead import Ahead
from sbpipe.selector.answer_log import AnswerLog
from sbpipe.selector.forward import ForwardPass
from sbpipe.selector.judge import Decision, Judge


class _Seen(NamedTuple):
    """Candidates of one scoring pass; predictions, residuals and places are known for all of them or for
    none.
    """

    example_ids: Ids
    scores: Floats
    is_new: Mask
    predictions: NDArray[np.int64] | None = None
    residuals: Floats | None = None
    places: NDArray[np.int64] | None = None


class _Considered(NamedTuple):
    """Scores, predictions and places of labels of the considered candidates, and the decision on them."""

    scores: Floats
    predictions: NDArray[np.int64] | None
    places: NDArray[np.int64] | None
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
        self._spans, self._log = spans, AnswerLog(spans, events)
        self._ahead = Ahead()
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
        """The statistics for the trainer, as running totals."""
        return self._forward.stats()

    def tune(self) -> None:
        """Measure a piece of what is left to "auto"; called between two leases."""
        batch_size = self._forward.tune()
        if batch_size is not None:
            self._batch_size = batch_size
            self.progress += 1

    def answer(self, lease: Lease) -> Selection:
        """Choose among the lease's candidates: as a whole, or in order until enough are kept."""
        if lease.stop > self._order.num_examples:
            raise PeerRejected(
                f"the trainer granted candidates {lease.start} to {lease.stop} of a data set that has "
                f"{self._order.num_examples}"
            )
        self._judge.restore(lease)
        if self._judge.needs_scores:
            self._forward.refresh(lease)
        if self._judge.chooses_sets and not lease.keep_all:
            chunks = self._as_a_set(lease)
        else:
            with closing(self._seen(lease, self._last_in_turn(lease))) as passes:
                chunks = self._in_turn(lease, passes)
        selection = self._selection(lease, chunks)
        self._ahead.note(lease, len(selection.scores), len(selection.kept))
        self._log.note(selection)
        return selection

    def _last_in_turn(self, lease: Lease) -> int:
        """Where a lease ends whose candidates are chosen in turn, if not enough are kept before."""
        if not self._forward.is_far or not self._judge.needs_scores:
            return lease.stop
        return lease.start + self._ahead.num_candidates(lease, self._batch_size)

    def _seen(self, lease: Lease, stop: int) -> Generator[_Seen]:
        """Score the lease's candidates up to `stop`, pass by pass; on an accelerator all are read at once.

        Passes that are not consumed were not considered: closing the generator undoes their queueing.
        """
        began, passes = time.perf_counter(), list[tuple[_Seen, Queued | None]]()
        for first in range(lease.start, stop, self._batch_size):
            example_ids = self._order.ids(lease.epoch, first, min(first + self._batch_size, stop))
            scores, is_new = self._judge.recall(example_ids, lease.epoch)
            seen = _Seen(example_ids, scores, is_new)
            if not self._forward.is_far:
                known = self._forward.score(example_ids[is_new], lease.epoch) if is_new.any() else None
                yield self._told(seen, known)
                continue
            queued = self._forward.queue(example_ids[is_new], lease.epoch) if is_new.any() else None
            passes.append((seen, queued))
            self.progress += 1
        unread = [queued for _, queued in passes if queued is not None]
        reading = self._forward.read(list(unread), began)
        try:
            for seen, queued in passes:
                scored = None if queued is None else next(reading)
                unread = unread[queued is not None :]
                yield self._told(seen, scored)
        finally:
            if unread:
                self._forward.give_back(unread[0])

    def _told(self, seen: _Seen, scored: Scored | None) -> _Seen:
        """The candidates of a pass, with the results of those that went through the model."""
        # Sent with heartbeats: it tells a hung selector from one that is busy with a long lease.
        self.progress += 1
        if scored is None:
            return seen
        seen.scores[seen.is_new] = scored.scores
        # A remembered score has no prediction, residual or place.
        if not seen.is_new.all():
            return seen
        return seen._replace(predictions=scored.predictions, residuals=scored.residuals, places=scored.places)

    def _in_turn(self, lease: Lease, passes: Iterable[_Seen]) -> list[_Considered]:
        """Choose within each pass, until enough are kept."""
        chunks: list[_Considered] = []
        num_kept = 0
        for seen in passes:
            with self._spans.span("select"):
                decision = self._judge.choose(
                    lease, seen.example_ids, seen.scores, seen.is_new, lease.most - num_kept
                )
            count = decision.num_considered
            predictions, places = (
                None if told is None else told[:count] for told in (seen.predictions, seen.places)
            )
            chunks.append(_Considered(seen.scores[:count], predictions, places, decision))
            num_kept += len(decision.kept)
            if num_kept >= lease.enough:
                break
        return chunks

    def _as_a_set(self, lease: Lease) -> list[_Considered]:
        """Score all candidates, then choose; in turn where some are judged by remembered scores."""
        passes = list(self._seen(lease, lease.stop))
        residuals = [seen.residuals for seen in passes if seen.residuals is not None]
        if len(residuals) < len(passes):
            return self._in_turn(lease, passes)
        scores = np.concatenate([seen.scores for seen in passes])
        with self._spans.span("select"):
            decision = self._judge.choose_set(
                lease,
                np.concatenate([seen.example_ids for seen in passes]),
                scores,
                np.concatenate(residuals),
            )
        predictions = _joined(seen.predictions for seen in passes)
        return [_Considered(scores, predictions, _joined(seen.places for seen in passes), decision)]

    def _selection(self, lease: Lease, chunks: list[_Considered]) -> Selection:
        needs_scores = self._judge.needs_scores
        decisions = [chunk.decision for chunk in chunks]
        firsts = np.cumsum([0, *(decision.num_considered for decision in decisions[:-1])])
        predictions = _joined(chunk.predictions for chunk in chunks)
        places = _joined(chunk.places for chunk in chunks)
        return Selection(
            lease_id=lease.lease_id,
            version=self._forward.version if needs_scores else lease.version,
            scores=np.concatenate([chunk.scores for chunk in chunks]),
            kept=np.concatenate(
                [decision.kept + np.int32(first) for decision, first in zip(decisions, firsts, strict=True)]
            ),
            keep_probability=np.concatenate([decision.keep_probability for decision in decisions]),
            stats=self.stats(),
            predicted=None if predictions is None else self._forward.count(predictions),
            fast_version=self._forward.fast_version if needs_scores and lease.fast_version >= 0 else -1,
            places=None if places is None else self._forward.count(places),
        )


def _joined(parts: Iterable[NDArray[np.int64] | None]) -> NDArray[np.int64] | None:
    """The concatenated results; None where one pass has none."""
    told = list(parts)
    known = [part for part in told if part is not None]
    return np.concatenate(known) if known and len(known) == len(told) else None
