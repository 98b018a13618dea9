"""Train batches on their way through a user's loop: drawn from the engine, weighed, finished by a step.

One journey lasts as long as one session. It tells the engine what the loop did, and the telemetry how the
loop spent its time. It must not know the optimizer, checkpoints or how a loop is written.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from sbpipe.config import Config
from sbpipe.errors import ModelError, SbpipeError
from sbpipe.ownloop.handed import Due, Flight, Handed, LoopError
from sbpipe.ownloop.session import Session
from sbpipe.records import RunEnd
from sbpipe.runs.spans import Span
from sbpipe.trainer.step import Weigh
from sbpipe.trainer.step_outcome import StepOutcome

_LONG_S, _LONG_STEPS = 1.0, 3.0
"""Time between two steps counts as no training if it is longer than both: these seconds, so many steps."""
OWN_STAGES = ("forward", "backward", "between")
"""Stages in the user's own code; our own stages are timed where they happen."""


class Journey:
    """The train batches of one session."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.handed = Handed()
        self.failure = ""
        """Why the run ended within the loop (training diverged, no selector left); "" = it did not."""
        self._outcome: StepOutcome | None = None
        self._is_taken_for_skipped = False
        self._has_begun = False
        self._span: Span | None = None
        self._since = 0.0

    @property
    def _config(self) -> Config:
        return self.session.config

    # --- a batch ----------------------------------------------------------------------------------

    def begin_pass(self, first: int) -> int:
        """A new pass begins at this position: batches that the last pass left are handed out again."""
        self.finish_if_skipped()
        self.handed.take_back()
        return first

    def end_pass(self) -> None:
        """The pass is over, or the loop left it early; it draws no batches for a while."""

    def next_part(self) -> Any:
        """The next batch for the loop."""
        self._enter("wait")
        if not self.handed.has_part:
            self._mind_the_clock()
            self._draw()
        part = self.handed.next_part()
        self._enter("forward")
        return part

    def _draw(self) -> None:
        session = self.session
        with self._or_fails():
            with session.spans.span("wait"):
                prepared = session.engine.next_batch(session.is_over, self._meanwhile)
            if prepared is None:
                raise session.keeper.failure or LoopError("the run is over: the loader was closed")
        if not self._has_begun:
            self._has_begun = True
            session.telemetry.begin()
        self.handed.add(prepared.batch, prepared.inputs)

    def _meanwhile(self) -> None:
        """While the next batch is missing, there is time to look at losses that have arrived, and to publish.

        A loop that fetches ahead may be within a step, but its weights are still those after the last one.
        """
        self.session.engine.settle(waits=False)
        self.session.engine.catch_up()

    def _mind_the_clock(self) -> None:
        """Refuse to run ahead under a clock: a batch is scored with the weights after the step before it."""
        if not self._config.is_clocked or len(self.handed) <= self._config.lag:
            return
        if self.handed.weighed is None:
            raise self._ran_ahead()
        # Either a gradient scaler skipped the step, or the step comes later, and is refused then.
        self.finish_if_skipped()
        self._is_taken_for_skipped = True

    def _ran_ahead(self) -> LoopError:
        return LoopError(
            f"mode = {self._config.mode!r}: the next batch was asked for before the optimizer step of the "
            "last one, and it is scored with the weights after that step. Use mode = 'pipelined', or "
            "'fixed-lag' with sync.lag of at least the batches that the loop fetches ahead"
        )

    # --- its losses -------------------------------------------------------------------------------

    def weights(self, losses: Any) -> torch.Tensor | None:
        """The weight of each example of the part that these losses belong to; None = all count alike."""
        due = self._due(losses)
        weights = self._weigh(due, losses)
        if due.flight.is_weighed and self._is_here(due):
            self._take(due.flight)
        self.session.engine.after.go()
        self._enter("backward")
        return weights

    def _weigh(self, due: Due, losses: torch.Tensor) -> torch.Tensor | None:
        weigh = self.weigher(due)
        weights = None if weigh is None else weigh(losses.detach())
        due.flight.losses.append(losses.detach())
        return weights

    def _due(self, losses: Any) -> Due:
        """The part that these losses belong to; refuses losses of the wrong shape."""
        self._enter("weigh")
        self.finish_if_skipped()
        self._is_taken_for_skipped = False
        due = self.handed.due()
        check_losses(losses, due)
        return due

    def weigher(self, due: Due) -> Weigh | None:
        """The function that weighs the losses of a part; None = all count alike."""
        return self.session.engine.weigher(due.flight.part(due.number))

    @staticmethod
    def _is_here(due: Due) -> bool:
        """Whether a part's losses are here, and not still on their way from other ranks."""
        return isinstance(due.flight.losses[-1], torch.Tensor)

    def _take(self, flight: Flight) -> None:
        """Give the losses of a whole train batch to the engine."""
        with self._or_fails():
            fresh = self._fresh(flight.losses)
            self._outcome = self.session.engine.take_losses(flight.batch, fresh, torch.empty(0))

    def _fresh(self, losses: list[Any]) -> torch.Tensor:
        return losses[0] if len(losses) == 1 else torch.cat(losses)

    # --- its step ---------------------------------------------------------------------------------

    def stepped(self, rate: float, share: float) -> None:
        """The optimizer has stepped at this learning rate; `share` of the pass is done."""
        if self._is_taken_for_skipped:
            raise self._ran_ahead()
        half = self.handed.half_weighed
        if half is not None:
            raise LoopError(
                f"the optimizer stepped after {len(half.losses)} of {len(half.parts)} batches of a train "
                "batch. Give sbpipe.select(..., accumulate=N) the N that the loop accumulates gradients over"
            )
        if self.handed.weighed is not None:
            self._enter("optimizer")
            self._finish(has_moved=True, rate=rate, share=share)
            self._enter("between")

    def finish_if_skipped(self) -> None:
        """A gradient scaler skips the step of a batch whose gradients overflowed: it counts as trained."""
        if self.handed.weighed is not None:
            self._finish(has_moved=False)

    def skip(self) -> None:
        """The loop drops its oldest batch: it counts as trained, and teaches selection nothing."""
        self.handed.drop()
        self._outcome = None
        self._finish_step(has_moved=False)

    def _finish(self, *, has_moved: bool, rate: float = 0.0, share: float | None = None) -> None:
        session, flight = self.session, self.handed.finish()
        if self._outcome is None:
            self._take(flight)
        outcome, self._outcome = self._outcome, None
        assert outcome is not None, "its losses were taken"
        self._finish_step(has_moved=has_moved)
        if session.engine.most_selectors:
            session.keeper.was_ready()
        with session.spans.span("log"):
            session.telemetry.step(outcome, rate)
            session.telemetry.progress(share)

    def _finish_step(self, *, has_moved: bool) -> None:
        """Count the step and publish the weights, if that is due."""
        with self._or_fails():
            self.session.engine.finish_step(self.session.step + 1, has_moved=has_moved)

    # --- beyond batches ---------------------------------------------------------------------------

    @property
    def step(self) -> int:
        """Train batches done."""
        return self.session.step

    @property
    def num_selectors(self) -> int:
        """Selectors that are ready."""
        return len(self.session.engine.roster.ready())

    def state(self) -> Mapping[str, Any]:
        """Everything that another journey needs to go on."""
        with self._or_fails():
            return self.session.state()

    def settle(self) -> None:
        """Look at the losses that are still unread: on an accelerator, those of the last step."""
        with self._or_fails():
            self.session.engine.settle()

    def look_back(self) -> None:
        """The loop is over: finish its last step and look at its losses."""
        self.finish_if_skipped()
        self.settle()

    def close(self, end: RunEnd, reason: str = "") -> dict[str, Any]:
        """End the run; returns its summary."""
        return self.session.close(end, reason)

    def fail(self, reason: str) -> None:
        """The loop ended with an error."""
        self.failure = reason
        self.session.fail(reason)

    @contextmanager
    def _or_fails(self) -> Iterator[None]:
        """If the engine raises here, end the run at once: the loop may never call again."""
        try:
            yield
        except SbpipeError as error:
            self.fail(str(error) or type(error).__name__)
            raise

    # --- the loop's time --------------------------------------------------------------------------

    def _enter(self, stage: str) -> None:
        """The loop enters another stage; the time since the last call was spent in the previous one."""
        now = time.perf_counter()
        if self._span is not None:
            spent_s = now - self._since
            if self._span.name == "between" and self._is_long(spent_s):
                self._span.name = "evaluate"
                self.session.engine.leave_out(spent_s)
            self._span.__exit__()
        self._span, self._since = self.session.spans.span(stage) if stage in OWN_STAGES else None, now
        if self._span is not None:
            self._span.__enter__()

    def _is_long(self, spent_s: float) -> bool:
        """Whether this was an evaluation or a checkpoint of the user's, which must not count as step time."""
        return spent_s > max(_LONG_S, _LONG_STEPS * (self.session.engine.period_s or 0.0))


def check_losses(losses: Any, due: Due) -> None:
    """Refuse anything that cannot be the losses of a part."""
    if not isinstance(losses, torch.Tensor) or losses.shape != (due.num_examples,):
        got = list(losses.shape) if isinstance(losses, torch.Tensor) else type(losses).__name__
        raise ModelError(
            f"weigh: got losses of shape {got}, want shape [{due.num_examples}]: one value per example "
            "of the batch. reduction='none' is the usual fix"
        )
