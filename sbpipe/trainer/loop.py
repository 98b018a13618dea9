"""The trainer's loop: receive, train step, publish, log. Knows no socket and no file."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from sbpipe.config import Config
from sbpipe.records import RunEnd, TrainBatch
from sbpipe.runs.spans import Spans
from sbpipe.trainer.engine import Engine
from sbpipe.trainer.evaluation import Evaluation
from sbpipe.trainer.record.telemetry import Telemetry
from sbpipe.trainer.step import TrainStep
from sbpipe.trainer.step_outcome import DivergedError


@dataclass
class Loop:
    """One run of the trainer.

    `save` writes a checkpoint of the step it is given. `must_save` says that the last one failed and another
    is due. `evaluate` returns None if it was stopped. `doing` is told what the loop does now.
    """

    config: Config
    engine: Engine
    train_step: TrainStep
    telemetry: Telemetry
    spans: Spans
    evaluate: Callable[[], Evaluation | None]
    save: Callable[[int], None]
    must_save: Callable[[], bool]
    doing: Callable[[str], None]
    is_stopped: threading.Event = field(default_factory=threading.Event)
    evaluated_at: int = 0
    """Candidates considered when the test error was last measured."""

    def run(self, first_step: int) -> RunEnd:
        """Train until the end of the stream, the budget or a stop; how it ended."""
        step = first_step
        # Checked before a step: a run that is resumed after its last step must not take another.
        while not (step and self._is_over_budget()):
            self.doing("training")
            if not self.engine.has_batch:
                self._look_back(waits=self.config.is_clocked)
            with self.spans.span("wait"):
                prepared = self.engine.next_batch(self.is_stopped, self._meanwhile)
            if prepared is None:
                self._look_back()
                return RunEnd.STOPPED if self.is_stopped.is_set() else RunEnd.FINISHED
            if step == first_step:
                self.telemetry.begin()
            batch = prepared.batch
            share = self._progress(batch)
            weigh = self.engine.weigher(batch)
            self.train_step.duty.begin(f"training step {step}")
            losses = self.train_step(step, share, prepared.inputs, prepared.targets, weigh)
            step += 1
            outcome = self.engine.take_losses(batch, losses, prepared.targets)
            self._evaluate_if_due(step, batch.candidates)
            self.engine.finish_step(step)
            with self.spans.span("log"):
                self.telemetry.step(outcome, self.train_step.rate)
                self.telemetry.progress(share)
            self.train_step.duty.end()
            self._checkpoint_if_due(step)
        self._look_back()
        return RunEnd.FINISHED

    def _look_back(self, *, waits: bool = True) -> None:
        """Check the last step's losses and write its event: there is time while the next batch is missing.

        Without `waits`, only if the losses have arrived. To wait for an accelerator that is still at that
        step would queue the next step only after the device has run dry. Under a clock selection waits for
        these losses anyway.
        """
        self.telemetry.flush(waits=waits)
        self.engine.settle(waits=waits)

    def _meanwhile(self) -> None:
        """The next batch is still missing."""
        self._look_back(waits=False)
        self.engine.catch_up()

    def _progress(self, batch: TrainBatch) -> float:
        train = self.config.train
        if train.steps:
            return (batch.step + 0.5) / train.steps
        if train.seconds:
            return min(1.0, self._spent_s / train.seconds)
        limit = self.engine.stream.ledger.limit
        assert limit is not None, "a run that neither steps nor seconds end has a last candidate"
        return batch.candidates / limit

    def _is_over_budget(self) -> bool:
        return bool(self.config.train.seconds) and self._spent_s >= self.config.train.seconds

    @property
    def _spent_s(self) -> float:
        return self.telemetry.elapsed_s - self.telemetry.evaluate_s

    def _evaluate_if_due(self, step: int, candidates: int) -> None:
        every = self.config.eval.every * self.engine.stream.ledger.num_examples
        is_due = every and candidates // every > self.evaluated_at // every
        if is_due and self.run_evaluation(step, candidates):
            self.evaluated_at = candidates

    def run_evaluation(self, step: int, candidates: int) -> bool:
        """Measure the test error now; False if it was stopped before its end.

        Selection is paused: time that is not counted must not be used to select.
        """
        if self.is_stopped.is_set():
            return False
        self.train_step.duty.end()
        with self.engine.paused():
            with self.spans.span("evaluate"):
                evaluation = self.evaluate()
            if evaluation is None:
                return False
            self.telemetry.evaluated(evaluation, step, candidates)
        if not evaluation.is_finite:
            raise DivergedError("no test example has a finite loss", step)
        return True

    def _checkpoint_if_due(self, step: int) -> None:
        every = self.config.checkpoint.every
        if (every and step % every == 0) or self.must_save():
            with self.spans.span("checkpoint"):
                self.save(step)
