"""The selector's forward pass: weights of the version that a lease asks for, candidates loaded and scored.

It measures what that costs. It must not know policies, ranges of leases, or sockets.
"""

import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from sbpipe.machine.device_spans import Plan
from sbpipe.records import Ids, Lease, SelectorStats
from sbpipe.runs.events import EventLog
from sbpipe.runs.spans import Spans
from sbpipe.scoring import Scored
from sbpipe.scoring.any_scorer import AnyScorer
from sbpipe.scoring.autotune import Tuning
from sbpipe.scoring.queued import Queued
from sbpipe.weights.replica import Replica, WeightsSource

WEIGHTS_DEADLINE_S = 60.0
PASSES = Plan(timed=("refresh", "view", "score", "tune"))
"""Stages timed by the accelerator: those that queue work and do not wait for it."""


class Candidates(Protocol):
    """A source of candidates: our own data, or a user's."""

    @property
    def num_examples(self) -> int:
        """How many there are."""
        ...

    def batch(self, example_ids: Ids, epochs: int | Ids) -> tuple[Any, Any]:
        """Inputs and targets of these examples, in that order, as they look in their epochs."""
        ...


class _Checks(NamedTuple):
    """Counts of checks, and the precision in use."""

    of_ranks: int
    of_statistics: int
    precision: str


class ForwardPass:
    """Scores candidates with a replica of the trainer's weights."""

    def __init__(
        self,
        candidates: Candidates,
        scorer: AnyScorer,
        replica: Replica,
        source: WeightsSource,
        spans: Spans,
        events: EventLog,
        tuning: Tuning | None = None,
    ) -> None:
        """`tuning` measures what is left to "auto"."""
        self._candidates, self._scorer = candidates, scorer
        self._replica, self._source = replica, source
        self._spans, self._events = spans, events
        self._tuning = tuning
        self._num_scored = 0
        self._num_applied = 0
        self._slowest_s = 0.0
        self._score_cpu_s = 0.0

    @property
    def version(self) -> int:
        """The weights version it scores with; -1 before the first."""
        return self._replica.version

    @property
    def fast_version(self) -> int:
        """The version of the fast part it scores with."""
        return self._replica.fast_version

    @property
    def precision(self) -> str:
        """The precision it scores in."""
        return self._scorer.precision

    def rehearse(self, example_ids: Ids) -> None:
        """Score one batch with the present weights, so that errors show now."""
        self._scorer.prepare(*self._candidates.batch(example_ids, 0))

    def tune(self) -> int | None:
        """Measure a piece of what is left to "auto"; returns the batch size in use, None when all
        is decided.
        """
        if self._tuning is None:
            return None
        if self._tuning.is_due():
            with self._spans.span("tune"):
                self._tuning.piece()
        batch_size = self._tuning.batch_size
        if self._tuning.is_over:
            self._tuning = None
        return batch_size

    def refresh(self, lease: Lease) -> None:
        """Bring the weights to what the lease asks for; waits for them."""
        with self._spans.span("await"):
            self._source.refresh(
                self._replica,
                lease.version,
                exact=lease.exact,
                deadline_s=WEIGHTS_DEADLINE_S,
                fast_version=lease.fast_version,
            )
        # Timed by the replica itself: most of "await" is waiting, not copying.
        for stage, begin, duration_s in self._replica.take_loads():
            self._spans.add(stage, begin, duration_s)
            self._num_applied += stage == "apply"
        if self._scorer.is_stale:
            with self._spans.span("refresh"):
                self._scorer.refresh()

    @property
    def is_far(self) -> bool:
        """Whether passes run on an accelerator, where several are queued before the first is read."""
        return self._scorer.device.type != "cpu"

    def score(self, example_ids: Ids, epoch: int) -> Scored:
        """Score some candidates."""
        begin = time.perf_counter()
        inputs, targets = self._load(example_ids, epoch)
        before, on_core_s = self._checks(), time.thread_time()
        with self._spans.span("score"):
            scored = self._scorer.examine(inputs, targets)
        if not self.is_far:
            self._score_cpu_s += time.thread_time() - on_core_s
        self._offer(inputs, targets)
        self._tell(before)
        self._slowest_s = max(self._slowest_s, time.perf_counter() - begin)
        self._num_scored += len(scored.scores)
        return scored

    def queue(self, example_ids: Ids, epoch: int) -> Queued:
        """Start to score some candidates; `read` returns the results."""
        inputs, targets = self._load(example_ids, epoch)
        before = self._checks()
        with self._spans.span("score"):
            # If needed again, the inputs are loaded again: keeping those of a whole lease may take too much
            # memory.
            queued = self._scorer.queue(inputs, targets, partial(self._candidates.batch, example_ids, epoch))
        self._offer(inputs, targets)
        self._tell(before)
        self._num_scored += queued.num_candidates
        return queued

    def read(self, passes: Sequence[Queued], began: float) -> Iterator[Scored]:
        """The results of passes that were queued since `began`, pass by pass."""
        reading = iter(self._scorer.read(passes))
        for _ in passes:
            before = self._checks()
            with self._spans.span("score"):
                scored = next(reading)
            self._tell(before)
            self._slowest_s = max(self._slowest_s, time.perf_counter() - began)
            yield scored

    def give_back(self, queued: Queued) -> None:
        """Drop this pass and those queued behind it: they will not be read."""
        self._scorer.give_back(queued)

    def _load(self, example_ids: Ids, epoch: int) -> tuple[Any, Any]:
        with self._spans.span("view"):
            return self._candidates.batch(example_ids, epoch)

    def _offer(self, inputs: Any, targets: Any) -> None:
        if self._tuning is not None:
            self._tuning.offer(inputs, targets)

    def _checks(self) -> _Checks:
        return _Checks(
            self._scorer.agreement.num_checks, self._scorer.statistics.num_checks, self._scorer.precision
        )

    def _tell(self, before: _Checks) -> None:
        """Write events for checks made since `before`."""
        statistics = self._scorer.statistics
        if self._scorer.agreement.num_checks > before.of_ranks:
            # With the precision that was checked: a bad check may have changed it meanwhile.
            self._events.write(
                "check",
                version=self.version,
                precision=before.precision,
                agreement=self._scorer.agreement.latest,
            )
        if statistics.num_checks > before.of_statistics and statistics.checked is not None:
            self._events.write(
                "statistics",
                version=self.version,
                **statistics.checked._asdict(),
                are_estimated=statistics.are_estimated,
            )

    def count(self, predictions: NDArray[np.int64]) -> NDArray[np.int32]:
        """How many predictions there are of each class."""
        return np.bincount(predictions, minlength=self._scorer.num_outputs).astype(np.int32)

    def stats(self) -> SelectorStats:
        """The statistics for the trainer, as running totals."""
        spans, agreement, scale = self._spans, self._scorer.agreement, self._scorer.scale_agreement
        statistics = self._scorer.statistics
        checked = statistics.checked
        return SelectorStats(
            weights_version=self.version,
            precision=self.precision,
            scored=self._num_scored,
            applied=self._num_applied,
            overflowed=self._scorer.num_overflowed,
            checks=agreement.num_checks,
            failed_checks=agreement.num_failed,
            view_s=spans.total_s["view"],
            score_s=spans.total_s["score"],
            score_cpu_s=self._score_cpu_s,
            select_s=spans.total_s["select"],
            apply_s=sum(spans.total_s[name] for name in ("apply", "apply_fast", "refresh")),
            tune_s=spans.total_s["tune"],
            idle_s=spans.total_s["idle"],
            slowest_chunk_s=self._slowest_s,
            apply_ms=spans.mean_ms("apply"),
            transfer_ms=spans.mean_ms("transfer"),
            refresh_ms=spans.mean_ms("refresh"),
            agreement=agreement.mean if agreement.num_checks else None,
            scale_agreement=scale.mean if scale.num_checks else None,
            estimated=statistics.num_estimated,
            evaluation_loss=checked.evaluation_loss if checked else None,
            batch_loss=checked.batch_loss if checked else None,
            statistics_agreement=checked.agreement if checked else None,
        )
