"""What a run tells of itself: an event per step, progress now and then, the summary. Reads; never steers."""

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sbpipe.runs.events import EventLog
from sbpipe.runs.names import stages_of
from sbpipe.runs.spans import Spans
from sbpipe.selection.fidelity import mean_error, spearman
from sbpipe.selection.worth import effective_share, residual_norms
from sbpipe.trainer.engine import Engine
from sbpipe.trainer.evaluation import Evaluation
from sbpipe.trainer.steering.health import Health
from sbpipe.trainer.step_outcome import StepOutcome

PROGRESS_EVERY_S = 0.5
BUSY = stages_of("trainer", "work")
APART = stages_of("trainer", "apart")
"""Stages the loop steps out of training for; ratios are of the rest of its time."""


@dataclass
class Tally:
    """Running totals that survive a resume."""

    staleness: np.ndarray = field(default_factory=lambda: np.zeros(16, np.int64))
    age_sum: float = 0.0
    queue_sum: float = 0.0
    fast_sum: float = 0.0
    filled: int = 0
    trained: int = 0
    fidelity_sum: float = 0.0
    fidelity_count: int = 0
    error_sum: float = 0.0
    elapsed_s: float = 0.0
    evaluate_s: float = 0.0
    share: float = 0.0


class Telemetry:
    """Measures the loop from outside: losses are read one step late, so that logging waits for no device."""

    def __init__(self, events: EventLog, spans: Spans, engine: Engine, *, process_began: float) -> None:
        self._events = events
        self._spans = spans
        self._config = engine.config
        self._stream, self._roster, self._census = engine.stream, engine.roster, engine.census
        self._process_began = process_began
        self._startup_before_s = 0.0
        self.began = time.perf_counter()
        self._last: tuple[StepOutcome, float, Health, dict[str, list[float]]] | None = None
        self._next_progress = 0.0
        self._tally = Tally()
        self._evaluation: Evaluation | None = None
        self._last_loss: float | None = None
        self._health = Health()

    def begin(self) -> None:
        """The first step is about to be taken: ratios count from here."""
        self.began = time.perf_counter()
        self._spans.clear()

    @property
    def elapsed_s(self) -> float:
        """Seconds of training, over all resumes."""
        return self._tally.elapsed_s + time.perf_counter() - self.began

    # --- per step ---------------------------------------------------------------------------------

    def step(self, outcome: StepOutcome, rate: float, health: Health) -> None:
        """Note a step; what is written now is the step before, whose losses have arrived by now."""
        self.flush()
        self._last = (outcome, rate, health, self._spans.take_recent())

    def flush(self) -> None:
        """Write the event of the last step."""
        if self._last is None:
            return
        (outcome, rate, health, spans), self._last = self._last, None
        batch, losses = outcome.batch, outcome.losses
        self._last_loss = outcome.mean_loss
        # Nobody scored what was filled in: it has neither age nor fidelity.
        is_selected = ~batch.is_fill
        staleness = (batch.step - batch.version)[is_selected]
        fast_version = batch.version if batch.fast_version is None else batch.fast_version
        fast_staleness = (batch.step - fast_version)[is_selected]
        arrived = batch.arrived_at_step[is_selected]
        age, queued = arrived - batch.version[is_selected], batch.step - arrived
        self._tally.filled += int(batch.is_fill.sum())
        self._tally.trained += len(batch.is_fill)
        self._tally.fast_sum += float(fast_staleness.sum())
        self._tally.age_sum += float(age.sum())
        self._tally.queue_sum += float(queued.sum())
        self._count_staleness(staleness)
        agreement, score_error = spearman(batch.scores, losses), mean_error(batch.scores, losses)
        if np.isfinite(agreement):
            self._tally.fidelity_sum += agreement
            self._tally.fidelity_count += 1
            self._tally.error_sum += score_error
        self._events.write(
            "step",
            step=batch.step,
            candidates=batch.candidates,
            loss=round(self._last_loss, 6),
            rate=rate,
            keep_probability=float(batch.keep_probability.mean()),
            fill=float(batch.is_fill.mean()),
            staleness_mean=_mean(staleness),
            staleness_max=int(staleness.max()) if len(staleness) else None,
            fast_staleness_mean=_mean(fast_staleness) if self._is_two_rate else None,
            age_mean=_mean(age),
            queue_mean=_mean(queued),
            spearman=agreement,
            score_error=score_error,
            class_counts=outcome.class_counts,
            **health._asdict(),
            spans=spans,
        )
        self._health = health

    def _count_staleness(self, staleness: np.ndarray) -> None:
        counts = np.bincount(np.maximum(staleness, 0))
        if len(counts) > len(self._tally.staleness):
            self._tally.staleness = np.pad(
                self._tally.staleness, (0, len(counts) - len(self._tally.staleness))
            )
        self._tally.staleness[: len(counts)] += counts

    @property
    def _is_two_rate(self) -> bool:
        """Whether the fast parts are published apart from the whole."""
        return self._stream.versions.fast_interval > 0

    @property
    def evaluate_s(self) -> float:
        """Seconds spent measuring the test error, over all resumes."""
        return self._tally.evaluate_s + self._spans.total_s["evaluate"]

    def evaluated(self, evaluation: Evaluation, step: int, candidates: int) -> None:
        """Note a test error."""
        self._evaluation = evaluation
        self._events.write(
            "eval",
            step=step,
            candidates=candidates,
            trained=step * self._stream.batch_size,
            elapsed_s=self.elapsed_s,
            evaluate_s=self.evaluate_s,
            startup_s=self._startup_before_s + self.began - self._process_began,
            error=evaluation.error,
            loss=evaluation.loss,
            class_errors=evaluation.class_errors,
        )
        self._events.write("scores", step=step, candidates=candidates, **self._census.take())

    def progress(self, share: float | None, *, now: bool = False) -> None:
        """Twice a second, an event that a terminal can show; the share stays as it was if none is given."""
        share = self._tally.share = self._tally.share if share is None else share
        if not now and time.perf_counter() < self._next_progress:
            return
        self._next_progress = time.perf_counter() + PROGRESS_EVERY_S
        elapsed = self.elapsed_s
        self._events.write(
            "progress",
            share=share,
            step=self._stream.steps_done,
            candidates=self._stream.ledger.num_considered,
            loss=self._last_loss,
            error=self._evaluation.error if self._evaluation else None,
            keep_rate=self._stream.yielded.num_kept / max(1, self._stream.ledger.num_considered),
            keep=self._stream.keep,
            fill=self._fill_share(),
            staleness=self._staleness()["mean"],
            idle=self._ratio("wait"),
            selector_idle=1.0 - self._selector_busy(self._loop_s()),
            selectors=len(self._roster.ready()),
            queue=self._stream.on_hand,
            **{name: getattr(self._health, name) for name in ("swing", "ess", "strength", "guard", "trust")},
            **self._worth("worth_ess"),
            candidates_per_s=self._stream.ledger.num_considered / max(1e-9, elapsed),
            elapsed_s=elapsed,
            left_s=elapsed * (1.0 - share) / share if share > 0 else None,
        )

    def _worth(self, name: str) -> dict[str, float | None]:
        """How unlike the last candidates are, and the standard error of that."""
        loss = self._config.loss
        norms = residual_norms(
            self._stream.table.recent,
            loss=loss.name,
            by=self._config.selection.score,
            label_smoothing=loss.label_smoothing,
        )
        found = effective_share(norms)
        return {name: found.share if found else None, f"{name}_error": found.error if found else None}

    # --- summary ----------------------------------------------------------------------------------

    def _loop_s(self) -> float:
        return max(1e-9, time.perf_counter() - self.began - sum(self._spans.total_s[name] for name in APART))

    def _ratio(self, *names: str) -> float:
        return min(1.0, sum(self._spans.total_s[name] for name in names) / self._loop_s())

    def _fill_share(self) -> float:
        return self._tally.filled / max(1, self._tally.trained)

    def _selector_busy(self, elapsed_s: float) -> float:
        devices = max(1, len(self._roster.peers) or len({peer.device for peer in self._roster.gone}))
        return min(1.0, self._roster.total(lambda stats: stats.busy_s) / (elapsed_s * devices))

    def _staleness(self) -> dict[str, float | None]:
        counts = self._tally.staleness
        total = int(counts.sum())
        if not total:
            return {"mean": None, "p95": None, "max": None}
        steps = np.arange(len(counts))
        return {
            "mean": float((counts * steps).sum() / total),
            "p95": int(np.searchsorted(np.cumsum(counts), 0.95 * total)),
            "max": int(np.flatnonzero(counts)[-1]),
        }

    def summary(self) -> dict[str, Any]:
        """The loop's numbers under their stable names; accounts add those of the whole run."""
        stream, tally, staleness = self._stream, self._tally, self._staleness()
        trained = max(1, int(tally.staleness.sum()))
        loop_s = self._loop_s()
        return {
            "steps": stream.steps_done,
            "candidates": stream.ledger.num_considered,
            "trained": stream.steps_done * self._stream.batch_size,
            "kept": stream.yielded.num_kept,
            "leftover": stream.leftover,
            "keep_rate": stream.yielded.num_kept / max(1, stream.ledger.num_considered),
            "candidates_per_s": stream.ledger.num_considered / max(1e-9, self.elapsed_s),
            "trainer.busy_ratio": self._ratio(*BUSY),
            "trainer.idle_ratio": self._ratio("wait"),
            "trainer.wait_view_ratio": self._ratio("wait_view"),
            "trainer.step_ms": sum(self._spans.mean_ms(name) or 0.0 for name in BUSY),
            "trainer.steer_ms": (self._spans.mean_ms("weigh") or 0.0) + (self._spans.mean_ms("steer") or 0.0),
            "trainer.view_ms": self._spans.mean_ms("view"),
            "trainer.dispatch_ms": 1e3
            * self._spans.total_s["dispatch"]
            / max(1, self._spans.count["forward"]),
            "trainer.log_ms": self._spans.mean_ms("log"),
            "selector.busy_ratio": self._selector_busy(loop_s),
            "selector.idle_ratio": 1.0 - self._selector_busy(loop_s),
            "fill.share": self._fill_share(),
            "keep.last": stream.keep,
            "staleness.mean": staleness["mean"],
            "staleness.p95": staleness["p95"],
            "staleness.max": staleness["max"],
            "staleness.age_mean": tally.age_sum / trained,
            "staleness.queue_mean": tally.queue_sum / trained,
            "staleness.fast_mean": tally.fast_sum / trained if self._is_two_rate else None,
            "fidelity.spearman": tally.fidelity_sum / tally.fidelity_count if tally.fidelity_count else None,
            "fidelity.mean_error": tally.error_sum / tally.fidelity_count if tally.fidelity_count else None,
            "scoring.agreement": self._roster.mean(lambda stats: stats.agreement),
            "scoring.scale_agreement": self._roster.mean(lambda stats: stats.scale_agreement),
            "scoring.failed_checks": int(self._roster.total(lambda stats: stats.failed_checks)),
            "scoring.checks": int(self._roster.total(lambda stats: stats.checks)),
            "scoring.overflowed": int(self._roster.total(lambda stats: stats.overflowed)),
            "scoring.estimated": int(self._roster.total(lambda stats: stats.estimated)),
            "scoring.evaluation_loss": self._roster.mean(lambda stats: stats.evaluation_loss),
            "scoring.batch_loss": self._roster.mean(lambda stats: stats.batch_loss),
            "scoring.statistics_agreement": self._roster.mean(lambda stats: stats.statistics_agreement),
            "scoring.refresh_ms": self._roster.mean(lambda stats: stats.refresh_ms),
            "sync.apply_ms": self._roster.mean(lambda stats: stats.apply_ms),
            "sync.transfer_ms": self._roster.mean(lambda stats: stats.transfer_ms) or 0.0,
            "lease.selected": stream.ledger.num_selected,
            "lease.trained": stream.ledger.num_trained,
            "lease.expired": stream.ledger.num_expired,
            **self._worth("worth.ess"),
            **self.evaluation_numbers(),
        }

    def evaluation_numbers(self) -> dict[str, float | None]:
        """The last test error and loss."""
        found = self._evaluation
        return {"eval.error": found.error if found else None, "eval.loss": found.loss if found else None}

    def state(self) -> dict[str, Any]:
        """For the checkpoint."""
        return {
            **vars(self._tally),
            "staleness": self._tally.staleness.copy(),
            "elapsed_s": self.elapsed_s,
            "evaluate_s": self.evaluate_s,
        }

    def restore(self, state: dict[str, Any], *, startup_s: float) -> None:
        """Go on from a checkpoint; `startup_s` were spent before training by earlier processes of the run."""
        self._tally = Tally(**state)
        self._startup_before_s = startup_s


def _mean(values: np.ndarray) -> float | None:
    return float(values.mean()) if len(values) else None
