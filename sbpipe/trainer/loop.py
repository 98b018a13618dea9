"""The trainer's loop: receive, train step, publish, log. It is handed everything it uses and knows neither
sockets nor selectors.
"""

import logging
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from sbpipe.config import Config, digest
from sbpipe.errors import UserError
from sbpipe.records import TrainBatch
from sbpipe.runs.spans import Spans
from sbpipe.trainer.checkpoint import Checkpoints
from sbpipe.trainer.evaluation import Evaluation
from sbpipe.trainer.record.telemetry import Telemetry
from sbpipe.trainer.serving.dispatch import Dispatcher
from sbpipe.trainer.serving.feed import Feed, Prepared
from sbpipe.trainer.steering.steering import Steering
from sbpipe.trainer.step import TrainStep
from sbpipe.weights.publisher import Publisher

log = logging.getLogger("sbpipe.trainer")

QUIET_DEADLINE_S = 10.0


_WAY_OUT = "Lower optim.lr, or look for what is wrong with the data"


class DivergedError(UserError):
    """The loss is no longer a number."""


@dataclass
class Loop:
    """One run of the trainer."""

    config: Config
    train_step: TrainStep
    feed: Feed
    dispatcher: Dispatcher
    publisher: Publisher
    fast: Publisher | None
    telemetry: Telemetry
    steering: Steering
    checkpoints: Checkpoints
    spans: Spans
    evaluate: Callable[[], Evaluation]
    total_candidates: int | None
    num_examples: int
    totals: Callable[[], dict[str, float]]
    is_stopped: threading.Event = field(default_factory=threading.Event)
    _evaluated_at: int = 0

    def run(self, first_step: int) -> str:
        """Train until the end of the stream, the budget or a stop; how it ended."""
        step = first_step
        ending = "finished"
        is_first = True
        while True:
            prepared = self._receive(step)
            if prepared is None:
                ending = "stopped" if self.is_stopped.is_set() else "finished"
                break
            if is_first:
                self.telemetry.begin()
                is_first = False
            batch = prepared.batch
            share = self._progress(batch)
            losses = self.train_step(
                step, share, prepared.inputs, prepared.targets, self.steering.weigher(batch)
            )
            step += 1
            self._check_loss(step, losses)
            with self.spans.span("steer"):
                for predicted in self.dispatcher.take_predicted():
                    self.steering.predicted(predicted)
                self.steering.observe(batch, losses, prepared.targets)
            self._evaluate_if_due(step, batch.candidates)
            self._publish(step)
            self.dispatcher.step_done(self.steering.proposal)
            with self.spans.span("log"):
                self.telemetry.step(
                    batch, losses, prepared.targets, self.train_step.rate, self.steering.reading
                )
                self.telemetry.progress(share)
            self._checkpoint_if_due(step)
            if self._is_over_budget():
                break
        self.telemetry.flush()
        self._check_loss(step + 1)
        return ending

    @property
    def _needs_weights(self) -> bool:
        return self.config.selection.traits.needs_scores

    def _receive(self, step: int) -> Prepared | None:
        """The next batch; if it is not there yet, the time is used to look at the last step's losses."""
        if self.feed.is_empty:
            self.telemetry.flush()
            self._check_loss(step + 1)
        with self.spans.span("wait"):
            return self.feed.next(self.is_stopped)

    def _progress(self, batch: TrainBatch) -> float:
        train = self.config.train
        if train.steps:
            return (batch.step + 0.5) / train.steps
        if train.seconds:
            return min(1.0, self._spent_s / train.seconds)
        assert self.total_candidates is not None
        return batch.candidates / self.total_candidates

    def _is_over_budget(self) -> bool:
        return bool(self.config.train.seconds) and self._spent_s >= self.config.train.seconds

    @property
    def _spent_s(self) -> float:
        return self.telemetry.elapsed_s - self.telemetry.evaluate_s

    def _publish(self, step: int) -> None:
        if not self._needs_weights:
            self.dispatcher.version_published(step)  # nobody scores: the clock goes on, the weights stay here
        elif step % self.config.sync_interval == 0:
            self.publisher.publish(step, must=self.config.is_clocked or bool(self.config.sync.max_staleness))
        if self.fast is not None and step % self.config.fast_interval == 0:
            self.fast.publish(step, must=self.config.is_clocked)

    def _check_loss(self, step: int, losses: torch.Tensor | None = None) -> None:
        """Stop before bad weights go anywhere. On the CPU this step's losses are at hand; an accelerator's
        are known a step later.
        """
        is_known = losses is not None and losses.device.type == "cpu"
        loss = float(losses.mean()) if losses is not None and is_known else self.telemetry.last_loss
        if loss is not None and not math.isfinite(loss):
            raise DivergedError(
                f"the training loss is {loss} at step {step - 1 if is_known else step - 2}: the run has "
                f"diverged. {_WAY_OUT}"
            )

    def _evaluate_if_due(self, step: int, candidates: int) -> None:
        every = self.config.eval.every * self.num_examples
        if every and candidates // every > self._evaluated_at // every:
            self._evaluated_at = candidates
            self.run_evaluation(step, candidates)

    def run_evaluation(self, step: int, candidates: int) -> None:
        """Measure the test error now, while nobody selects: this time is not counted, so it must not be worth
        anything.

        What is out is waited for on the clock, as the loop would have had to without measuring.
        """
        with self.spans.span("wait"):
            self.dispatcher.pause(QUIET_DEADLINE_S)
        with self.spans.span("evaluate"):
            evaluation = self.evaluate()
        self.telemetry.evaluated(evaluation, step, candidates)
        self.dispatcher.go_on()

    def _checkpoint_if_due(self, step: int) -> None:
        if self.config.checkpoint.every and step % self.config.checkpoint.every == 0:
            with self.spans.span("checkpoint"):
                self.save_checkpoint(step)

    def save_checkpoint(self, step: int) -> None:
        """Everything a resume needs, taken at a step boundary; weights that are not finite never replace good
        ones.
        """
        try:
            state = self.state(step)
        except TimeoutError as error:
            log.warning("no checkpoint at step %d (%s); the last good one is kept", step, error)
            return
        if not all(
            bool(tensor.isfinite().all()) for tensor in state["model"].values() if tensor.is_floating_point()
        ):
            raise DivergedError(
                f"the weights are not finite at step {step}: the run has diverged. {_WAY_OUT}"
            )
        self.checkpoints.save(step, state)

    def state(self, step: int) -> dict[str, Any]:
        """A copy of the run's state."""
        self.telemetry.flush()
        model = {
            name: tensor.detach().cpu().clone() for name, tensor in self.train_step.model.state_dict().items()
        }
        state = {
            "digest": digest(self.config),
            "model": model,
            "optimizer": _cloned(self.train_step.optimizer.state_dict()),
            "scaler": self.train_step.scaler.state_dict(),
            "stream": self.dispatcher.state(QUIET_DEADLINE_S),
            "telemetry": self.telemetry.state(),
            "steering": self.steering.state(),
            "evaluated_at": self._evaluated_at,
            "totals": self.totals(),
        }
        if self.config.is_clocked and self._needs_weights and self.publisher.newest_version != step:
            state["published"] = self.publisher.newest()
        if self.config.is_clocked and self.fast is not None and self.fast.newest_version != step:
            state["published_fast"] = self.fast.newest()
        return state

    def resume(self, state: dict[str, Any]) -> None:
        """Take over the loop's own part of a checkpoint."""
        self.train_step.model.load_state_dict(state["model"])
        self.train_step.optimizer.load_state_dict(state["optimizer"])
        self.train_step.scaler.load_state_dict(state["scaler"])
        self.telemetry.restore(state["telemetry"])
        self.steering.restore(state["steering"])
        self._evaluated_at = state["evaluated_at"]
        for name, publisher in (("published", self.publisher), ("published_fast", self.fast)):
            if publisher is not None and name in state:
                publisher.publish_flat(state[name]["version"], state[name]["flat"])
            elif publisher is not None:
                publisher.publish(state["step"], must=True)


def _cloned(value: Any) -> Any:
    """A deep copy with tensors on the CPU."""
    if hasattr(value, "detach"):
        return value.detach().cpu().clone()
    if isinstance(value, dict):
        return {name: _cloned(inner) for name, inner in value.items()}
    return [_cloned(inner) for inner in value] if isinstance(value, list) else value
