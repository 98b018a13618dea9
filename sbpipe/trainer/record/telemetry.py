"""The events of a run: its steps, its progress twice a second, and the summary. Reads; never steers.

Without a thread for it, it runs in the loop, and its work for a step costs training time. A long run's steps
are written in windows.
"""

from typing import Any, NamedTuple

from sbpipe.config import digest
from sbpipe.runs.density import EVALUATIONS, interval_s
from sbpipe.runs.events import EventLog
from sbpipe.runs.spans import Spans, Stages, rounded
from sbpipe.runs.thinning import Thinner, Turn
from sbpipe.trainer.engine import Engine
from sbpipe.trainer.evaluation import Evaluation
from sbpipe.trainer.record.step_numbers import StepNumbers, numbers_of
from sbpipe.trainer.record.tally import Tally, Window
from sbpipe.trainer.record.usage import Usage
from sbpipe.trainer.steering.health import Health
from sbpipe.trainer.step_outcome import StepOutcome
from sbpipe.trainer.stream.keep import at_bound

PROGRESS_EVERY_S = 0.5


class _Noted(NamedTuple):
    """A step that is not written yet."""

    outcome: StepOutcome
    rate: float
    turn: Turn
    spans: dict[str, list[float]]


# Fields of a progress event, and where the last evaluation has them.
_EVALUATED = {"error": "error", "test_loss": "loss", "metric": "metric", "metric_name": "metric_name"}


class Telemetry:
    """Observes the loop. Losses are read one step late, so that logging never waits for a device.

    Events are written after their step, beside the next one where there is a thread for that
    (`after_step.py`).
    """

    def __init__(
        self,
        events: EventLog,
        spans: Spans,
        engine: Engine,
        *,
        process_began: float,
        messages_are_beside: bool = False,
    ) -> None:
        self._events, self._clock = events, events.clock
        self._spans = spans
        self._config = engine.config
        self._stream, self._roster, self._census = engine.stream, engine.roster, engine.census
        self._after = engine.after
        self._process_began = process_began
        self._startup_before_s = 0.0
        self.began = self._clock()
        self._usage = Usage(spans, self._roster, lambda: (self.began, self._clock()), messages_are_beside)
        self._thinner = Thinner(spans)
        self._last: _Noted | None = None
        self._window: Window | None = None
        self._next_progress = self._next_lasting_progress = 0.0
        self._tally = Tally()
        self._evaluation: Evaluation | None = None
        self._untold_scores: tuple[int, int] | None = None
        self._last_loss: float | None = None
        self._health = Health()

    def say_start(self, *, is_endless: bool = False) -> None:
        """Write the first event of a run; an endless run ends when its user's loop does."""
        config, stream = self._config, self._stream
        self._events.write(
            "start",
            mode=config.mode,
            policy=config.selection.policy,
            keep=config.selection.keep_rate,
            interval=config.sync_interval,
            fast_interval=stream.versions.fast_interval,
            batch_size=config.train.batch_size,
            seed=config.seed,
            digest=digest(config),
            total_candidates=stream.ledger.limit,
            total_steps=None if is_endless else config.train.steps or None,
            total_s=config.train.seconds or None,
            num_examples=stream.ledger.num_examples,
            num_classes=self._census.num_classes,
            devices=config.num_devices,
        )

    def begin(self) -> None:
        """The first step is about to begin: ratios count from here."""
        self.began = self._clock()
        self._spans.clear()

    @property
    def elapsed_s(self) -> float:
        """Seconds of training, over all resumes."""
        return self._tally.elapsed_s + self._clock() - self.began

    # --- per step ---------------------------------------------------------------------------------

    def step(self, outcome: StepOutcome, rate: float) -> None:
        """Note a step, and write the step before, whose losses have arrived by now."""
        before = self._last
        if before is not None:
            self._after.do(lambda: self._tell(before))
        turn = self._thinner.turn(outcome.batch.step, self._clock())
        spans = self._spans.take_recent() if turn.needs_spans else {}
        self._last = _Noted(outcome, rate, turn, spans)

    def flush(self, *, waits: bool = True) -> None:
        """Write the last step, or add it to its window; without `waits`, only if its losses have arrived."""
        if self._last is not None and (waits or self._last.outcome.has_come):
            last, self._last = self._last, None
            self._after.do(lambda: self._tell(last))
        if waits:
            self._after.settle()

    def _tell(self, noted: _Noted) -> None:
        numbers = numbers_of(noted.outcome, noted.rate)
        self._tally.add(numbers)
        # None if steering has not read this step yet: then the last known health stands.
        self._last_loss, self._health = numbers.loss, noted.outcome.health or self._health
        if noted.turn.is_single:
            self._write_single(numbers, noted)
        else:
            self._gather(numbers, noted)

    def _write_single(self, numbers: StepNumbers, noted: _Noted) -> None:
        selected = numbers.selected
        self._events.write(
            "step",
            step=numbers.step,
            candidates=numbers.candidates,
            loss=round(numbers.loss, 6),
            rate=numbers.rate,
            keep_probability=numbers.keep_probability,
            fill=numbers.filled / numbers.trained,
            staleness_mean=numbers.staleness_sum / selected if selected else None,
            staleness_max=numbers.staleness_max,
            fast_staleness_mean=numbers.fast_sum / selected if selected and self._is_two_rate else None,
            age_mean=numbers.age_sum / selected if selected else None,
            queue_mean=numbers.queue_sum / selected if selected else None,
            spearman=numbers.spearman,
            score_error=numbers.score_error,
            class_counts=noted.outcome.class_counts,
            **self._health._asdict(),
            spans=rounded(noted.spans),
        )

    def _gather(self, numbers: StepNumbers, noted: _Noted) -> None:
        if self._window is None:
            self._window = Window(numbers.step)
        self._window.add(numbers, self._health)
        if noted.turn.is_shown:
            self._events.write_recent("last_step", step=numbers.step, spans=rounded(noted.spans))
        if noted.turn.ends_window:
            self._write_window(noted.turn.stages, is_partial=False)

    def _write_window(self, stages: Stages, *, is_partial: bool) -> None:
        if self._window is not None:
            fields = self._window.fields(stages, is_two_rate=self._is_two_rate)
            self._events.write("steps", **fields, is_partial=is_partial)
            self._window = None

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
        self._after.settle()
        self._evaluation = evaluation
        is_full = EVALUATIONS.ends_window(self._tally.evaluations)
        self._tally.evaluations += 1
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
            metric=evaluation.metric,
            metric_name=evaluation.metric_name,
            # After hundreds of evaluations the error of each class in each is too much to show.
            class_errors=evaluation.class_errors if is_full else [],
        )
        self._untold_scores = (step, candidates)
        if is_full:
            self._tell_scores()

    def _tell_scores(self) -> None:
        if self._untold_scores is not None:
            (step, candidates), self._untold_scores = self._untold_scores, None
            self._events.write("scores", step=step, candidates=candidates, **self._census.take())

    def progress(self, share: float | None, *, now: bool = False) -> None:
        """Twice a second, write an event for terminals; without a share the last one stands.

        In a long run only some of these events are kept. `now`: the run ends; write all that is pending.
        """
        share = self._tally.share = self._tally.share if share is None else share
        clock = self._clock()
        if not now and clock < self._next_progress:
            return
        self._next_progress = clock + PROGRESS_EVERY_S
        stays = now or clock >= self._next_lasting_progress
        if stays:
            self._next_lasting_progress = clock + interval_s(self.elapsed_s, PROGRESS_EVERY_S)
        if now:
            self._after.settle()
            self._tell_scores()
            self._write_window(self._thinner.stages_so_far(), is_partial=True)
        self._after.do(lambda: self._tell_progress(share, stays=stays))
        if now:
            self._after.settle()

    def _tell_progress(self, share: float, *, stays: bool) -> None:
        if stays:
            self._events.write("progress", **self._progress(share))
        else:
            self._events.write_recent("progress", **self._progress(share))

    def _progress(self, share: float) -> dict[str, Any]:
        elapsed = self.elapsed_s
        return dict(
            share=share,
            step=self._stream.steps_done,
            candidates=self._stream.ledger.num_considered,
            loss=self._last_loss,
            **{name: getattr(self._evaluation, found, None) for name, found in _EVALUATED.items()},
            keep_rate=self._stream.yielded.num_kept / max(1, self._stream.ledger.num_considered),
            keep=self._stream.keep,
            fill=self._tally.fill_share,
            staleness=self._tally.staleness_mean(),
            idle=self._usage.ratio("wait"),
            selector_idle=1.0 - self._usage.selector_busy(),
            selectors=len(self._roster.ready()),
            queue=self._stream.now.on_hand,
            **{name: getattr(self._health, name) for name in ("swing", "ess", "strength", "guard", "trust")},
            **self._worth("worth_ess"),
            candidates_per_s=self._stream.ledger.num_considered / max(1e-9, elapsed),
            elapsed_s=elapsed,
            left_s=elapsed * (1.0 - share) / share if share > 0 else None,
        )

    def _worth(self, name: str) -> dict[str, float | None]:
        """The effective share of the last candidates, and its standard error."""
        found = self._stream.kind.effective(self._stream.table.recent)
        return {name: found.share if found else None, f"{name}_error": found.error if found else None}

    # --- summary ----------------------------------------------------------------------------------

    def summary(self) -> dict[str, Any]:
        """The loop's numbers under their stable names; accounts add those of the whole run."""
        self._after.settle()
        self._spans.settle()
        stream = self._stream
        return {
            "steps": stream.steps_done,
            "candidates": stream.ledger.num_considered,
            "trained": stream.steps_done * self._stream.batch_size,
            "kept": stream.yielded.num_kept,
            "leftover": stream.leftover,
            "keep_rate": stream.yielded.num_kept / max(1, stream.ledger.num_considered),
            "candidates_per_s": stream.ledger.num_considered / max(1e-9, self.elapsed_s),
            **self._usage.of_trainer(),
            **self._usage.of_selectors(),
            "keep.last": stream.keep,
            "keep.at_bound": at_bound(stream.keep, self._config.keep_bounds),
            **self._tally.summary(is_two_rate=self._is_two_rate),
            "lease.selected": stream.ledger.num_selected,
            "lease.trained": stream.ledger.num_trained,
            "lease.expired": stream.ledger.num_expired,
            **self._worth("worth.ess"),
            **self.evaluation_numbers(),
        }

    @property
    def doubt(self) -> str:
        """A caveat on how busy the device was, to go with the summary; "" = none."""
        return self._usage.doubt

    def evaluation_numbers(self) -> dict[str, float | str | None]:
        """The results of the last evaluation."""
        names = ("error", "loss", "metric", "metric_name")
        return {f"eval.{name}": getattr(self._evaluation, name, None) for name in names}

    def state(self) -> dict[str, Any]:
        """For the checkpoint."""
        self._after.settle()
        self._spans.settle()
        return {
            **vars(self._tally),
            "staleness": self._tally.staleness.copy(),
            "elapsed_s": self.elapsed_s,
            "evaluate_s": self.evaluate_s,
            "window": self._window.state(self._thinner.stages_so_far()) if self._window else {},
        }

    def restore(self, state: dict[str, Any], *, startup_s: float) -> None:
        """Go on from a checkpoint; `startup_s` is what earlier processes of the run spent before training."""
        self._tally = Tally(**state)
        self._window = Window(**self._tally.window) if self._tally.window else None
        self._startup_before_s = startup_s
