"""From a lease to a selection: order, view, score, policy, coin. One version per lease. Knows no socket."""

import time
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sbpipe.config import SelectorConfig
from sbpipe.data import Order, Split
from sbpipe.records import Floats, Ids, Lease, Selection
from sbpipe.runs.events import EventLog
from sbpipe.runs.spans import Spans
from sbpipe.scoring import Scorer, autotune
from sbpipe.selection import Policy, ScoreCache, TrainedLosses, choose, drawn
from sbpipe.selection.within import Mask
from sbpipe.weights.replica import Replica, WeightsSource

WEIGHTS_DEADLINE_S = 60.0


class _Considered(NamedTuple):
    """Candidates of one scoring pass that were considered; `kept` are positions among them."""

    scores: Floats
    kept: NDArray[np.int32]
    keep_probability: Floats
    predictions: NDArray[np.int64] | None


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
        floor: int = 0,
        irreducible: Floats | None = None,
        cache: ScoreCache,
        trained: TrainedLosses | None = None,
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
        self._floor = floor
        self.irreducible = irreducible
        self._cache = cache
        self._trained = trained
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
        chunks: list[_Considered] = []
        num_kept = 0
        for start in range(lease.start, lease.stop, self._batch_size):
            example_ids = self._order.ids(lease.epoch, start, min(start + self._batch_size, lease.stop))
            chunks.append(self._consider(lease, example_ids, lease.most - num_kept))
            num_kept += len(chunks[-1].kept)
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
        scores, predictions, is_new = self._score(example_ids, lease.epoch)
        with self._spans.span("select"):
            classes = self._candidates.targets_of(example_ids) if self._needs_classes else None
            # What travels are the losses, which the trainer compares with fresh ones.
            judged = scores if self.irreducible is None else scores - self.irreducible[example_ids]
            probability = self._policy.keep_probability(judged, classes, strength=lease.strength)
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
            self._policy.consider(judged[:count], None if classes is None else classes[:count])
            # What is behind the last considered one is leased and scored again in this epoch: it must not be
            # remembered twice.
            new = np.flatnonzero(is_new[:count])
            self._cache.remember(example_ids[new], scores[new], lease.epoch)
        return _Considered(
            scores[:count], kept, probability[:count], None if predictions is None else predictions[:count]
        )

    def _selection(self, lease: Lease, chunks: list[_Considered]) -> Selection:
        needs_scores = self._policy.needs_scores
        firsts = np.cumsum([0, *(len(chunk.scores) for chunk in chunks[:-1])])
        predictions = [chunk.predictions for chunk in chunks if chunk.predictions is not None]
        return Selection(
            lease_id=lease.lease_id,
            version=self._replica.version if needs_scores else lease.version,
            scores=np.concatenate([chunk.scores for chunk in chunks]),
            kept=np.concatenate(
                [chunk.kept + np.int32(first) for chunk, first in zip(chunks, firsts, strict=True)]
            ),
            keep_probability=np.concatenate([chunk.keep_probability for chunk in chunks]),
            stats=self.stats(),
            predicted=self._count(np.concatenate(predictions)) if predictions else None,
            fast_version=self._replica.fast_version if needs_scores and lease.fast_version >= 0 else -1,
        )

    def _count(self, predictions: NDArray[np.int64]) -> NDArray[np.int32]:
        return np.bincount(predictions, minlength=self._scorer.num_outputs).astype(np.int32)

    def rehearse(self, own: SelectorConfig) -> None:
        """Score one batch with whatever weights there are, and choose what is left to be measured: what
        cannot work shows now.
        """
        if not self._policy.needs_scores:
            return
        wanted = autotune.BATCH_SIZES[-1] if own.batch_size == "auto" else self._batch_size
        inputs, targets = self._candidates.batch(
            self._order.ids(0, 0, min(wanted, self._candidates.num_examples)), 0
        )
        some = (inputs[: self._batch_size], targets[: self._batch_size])
        if own.precision == "auto":
            autotune.choose_precision(self._scorer, *some, own.min_agreement)
        self._scorer.prepare(*some)
        if own.batch_size == "auto":
            self._batch_size = autotune.choose_batch_size(self._scorer.score, inputs, targets)

    @property
    def precision(self) -> str:
        """What it scores in."""
        return self._scorer.precision

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
        begin = time.perf_counter()
        if self._scorer.refresh():
            self._spans.add("refresh", begin, time.perf_counter() - begin)

    def _score(self, example_ids: Ids, epoch: int) -> tuple[Floats, NDArray[np.int64] | None, Mask]:
        """Their scores, fresh or remembered, the class the model takes each for, where all are fresh, and
        which ones are.
        """
        nobody = np.zeros(len(example_ids), bool)
        if self._trained is not None:
            return self._trained.of(example_ids), None, nobody
        if not self._policy.needs_scores:
            return np.full(len(example_ids), np.nan, np.float32), None, nobody
        scores, is_new = self._cache.recall(example_ids, epoch)
        if not is_new.any():
            return scores, None, nobody
        scores[is_new], predictions = self._forward(example_ids[is_new], epoch)
        return scores, predictions if is_new.all() else None, is_new

    def _forward(self, example_ids: Ids, epoch: int) -> tuple[Floats, NDArray[np.int64] | None]:
        begin = time.perf_counter()
        with self._spans.span("view"):
            inputs, targets = self._candidates.batch(example_ids, epoch)
        num_checks, precision = self._scorer.agreement.num_checks, self.precision
        with self._spans.span("score"):
            scores, predictions = self._scorer.score_and_predict(inputs, targets)
        if self._scorer.agreement.num_checks > num_checks:
            self._events.write(
                "check", version=self.version, precision=precision, agreement=self._scorer.agreement.latest
            )
        self.slowest_chunk_s = max(self.slowest_chunk_s, time.perf_counter() - begin)
        self.num_scored += len(scores)
        return scores, predictions

    def stats(self) -> dict[str, float]:
        """What the trainer wants to know of this selector, as running totals."""
        spans = self._spans
        seconds = {f"{name}_s": spans.total_s[name] for name in ("view", "score", "select")}
        seconds["apply_s"] = sum(spans.total_s[name] for name in ("apply", "apply_fast", "refresh"))
        agreement = self._scorer.agreement
        return {
            "busy_s": sum(seconds.values()),
            **seconds,
            "idle_s": spans.total_s["idle"],
            "scored": float(self.num_scored),
            "applied": float(self.num_applied),
            "apply_ms": spans.mean_ms("apply") or 0.0,
            "transfer_ms": spans.mean_ms("transfer") or 0.0,
            "refresh_ms": spans.mean_ms("refresh") or 0.0,
            "overflowed": float(self._scorer.num_overflowed),
            "checks": float(agreement.num_checks),
            "failed_checks": float(agreement.num_failed),
            "agreement": agreement.mean if agreement.num_checks else 0.0,
            "scale_agreement": self._scorer.scale_agreement.mean
            if self._scorer.scale_agreement.num_checks
            else 0.0,
            "slowest_chunk_s": self.slowest_chunk_s,
        }
