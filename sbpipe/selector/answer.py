"""From a lease to a selection: order, view, score, policy, coin. One version per lease. Knows no socket."""

import time

import numpy as np
from numpy.typing import NDArray

from sbpipe.data import Order, Split
from sbpipe.metrics import EventLog, Spans
from sbpipe.records import Floats, Ids, Lease, Selection
from sbpipe.scoring import Scorer
from sbpipe.selection import Policy, choose, coins
from sbpipe.weights.replica import Replica, WeightsSource

WEIGHTS_DEADLINE_S = 60.0


class Selector:
    """Answers leases, one at a time, with the weights it is told to use."""

    def __init__(
        self,
        *,
        seed: int,
        batch_size: int,
        candidates: Split,
        order: Order,
        scorer: Scorer,
        policy: Policy,
        needs_classes: bool = False,
        replica: Replica,
        source: WeightsSource,
        spans: Spans,
        events: EventLog,
    ) -> None:
        self._seed = seed
        self._batch_size = batch_size
        self._candidates = candidates
        self._order = order
        self._scorer = scorer
        self._policy = policy
        self._needs_classes = needs_classes
        self._replica = replica
        self.source = source
        self._spans = spans
        self._events = events
        self.progress = 0
        self.num_scored = 0
        self.num_applied = 0
        self.slowest_chunk_s = 0.0

    @property
    def version(self) -> int:
        """The weights version it scores with; -1 before the first."""
        return self._replica.version

    def answer(self, lease: Lease) -> Selection:
        """Consider the lease's candidates in order until its range ends or enough are kept."""
        if lease.history is not None:
            self._policy.restore(lease.history, lease.history_classes)
        if self._policy.needs_scores:
            self._refresh(lease)
        version = self._replica.version if self._policy.needs_scores else lease.version
        scores, kept, probabilities, num_kept, num_considered = [], [], [], 0, 0
        predicted: NDArray[np.int32] | None = None
        for start in range(lease.start, lease.stop, self._batch_size):
            example_ids = self._order.ids(lease.epoch, start, min(start + self._batch_size, lease.stop))
            chunk, predictions = self._score(example_ids, lease.epoch)
            with self._spans.span("select"):
                classes = self._candidates.targets_of(example_ids) if self._needs_classes else None
                probability = self._policy.keep_probability(chunk, classes, strength=lease.strength)
                if lease.keep_all:
                    probability = np.ones_like(chunk)
                considered, positions = choose(probability, coins(self._seed, lease.epoch, example_ids), lease.most - num_kept)
                self._policy.consider(chunk[:considered], classes if classes is None else classes[:considered])
            scores.append(chunk[:considered])
            kept.append(positions + np.int32(num_considered))
            probabilities.append(probability[:considered])
            if predictions is not None:
                predicted = predictions if predicted is None else predicted + predictions
            num_kept += len(positions)
            num_considered += considered
            self.progress += 1
            if num_kept >= lease.enough:
                break
        selection = Selection(
            lease_id=lease.lease_id,
            version=version,
            scores=np.concatenate(scores),
            kept=np.concatenate(kept),
            keep_probability=np.concatenate(probabilities),
            stats=self.stats(),
            predicted=predicted,
            fast_version=self._replica.fast_version if self._policy.needs_scores and lease.fast_version >= 0 else -1,
        )
        self._events.write(
            "selection",
            lease=lease.lease_id,
            version=version,
            candidates=num_considered,
            kept=num_kept,
            spans=self._spans.take_recent(),
        )
        return selection

    def rehearse(self) -> None:
        """Score one batch with whatever weights there are: too little memory shows now, not in the first lease."""
        if self._policy.needs_scores:
            inputs, targets = self._candidates.batch(self._order.ids(0, 0, min(self._batch_size, self._candidates.num_examples)), 0)
            self._scorer.score(inputs, targets)

    def _refresh(self, lease: Lease) -> None:
        with self._spans.span("await"):
            self.source.refresh(
                self._replica,
                lease.version,
                exact=lease.exact,
                deadline_s=WEIGHTS_DEADLINE_S,
                fast_version=lease.fast_version,
            )
        for stage, begin, duration_s in self._replica.take_loads():
            self._spans.add(stage, begin, duration_s)
            self.num_applied += stage == "apply"

    def _score(self, example_ids: Ids, epoch: int) -> tuple[Floats, NDArray[np.int32] | None]:
        """Their scores, and how many of them the model takes for each class."""
        if not self._policy.needs_scores:
            return np.full(len(example_ids), np.nan, np.float32), None
        begin = time.perf_counter()
        with self._spans.span("view"):
            inputs, targets = self._candidates.batch(example_ids, epoch)
        with self._spans.span("score"):
            scores, predictions = self._scorer.score_and_predict(inputs, targets)
        self.slowest_chunk_s = max(self.slowest_chunk_s, time.perf_counter() - begin)
        self.num_scored += len(scores)
        return scores, predictions

    def stats(self) -> dict[str, float]:
        """What the trainer wants to know of this selector, as running totals."""
        spans = self._spans
        seconds = {f"{name}_s": spans.total_s[name] for name in ("view", "score", "select")}
        seconds["apply_s"] = spans.total_s["apply"] + spans.total_s["apply_fast"]
        return {
            "busy_s": sum(seconds.values()),
            **seconds,
            "idle_s": spans.total_s["idle"],
            "scored": float(self.num_scored),
            "applied": float(self.num_applied),
            "apply_ms": spans.mean_ms("apply") or 0.0,
            "transfer_ms": spans.mean_ms("transfer") or 0.0,
            "slowest_chunk_s": self.slowest_chunk_s,
        }
