"""What a user's loop draws its batches from: selected, prefetched, and paired with the losses it hands back.

    for batch in loader:
        loader.weigh(losses(model, batch)).backward()
        optimizer.step(); optimizer.zero_grad()

It must not know any framework, nor how selection works.
"""

import atexit
import math
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import nn

from sbpipe.config import digest
from sbpipe.errors import ModelError
from sbpipe.ownloop.arguments import refuse_ranks
from sbpipe.ownloop.handed import Due, Handed, LoopError
from sbpipe.ownloop.rehearsal import rehearse
from sbpipe.ownloop.session import Plan, Session, say_verdict
from sbpipe.records import Ids, RunEnd
from sbpipe.runs.directory import TRAINER_EVENTS
from sbpipe.trainer.checkpoint_file import frozen, thawed
from sbpipe.trainer.step_outcome import StepOutcome

_LONG_S, _LONG_STEPS = 1.0, 3.0
"""Time between two steps that is no training: longer than this, and than so many steps."""


class SelectedLoader:
    """Iterates over selected train batches; one pass is `len` batches, and the run goes on with the next."""

    def __init__(self, plan: Plan, batch_size: int) -> None:
        self._plan, self.batch_size = plan, batch_size
        self.dataset = plan.job.data.dataset
        self._session: Session | None = None
        self._handed = Handed()
        self._optimizer: torch.optim.Optimizer | None = None
        self._hook: Any = None
        self._state: dict[str, Any] | None = None
        self._position = 0
        self._resume_at = 0
        self._outcome: StepOutcome | None = None
        self._is_taken_for_skipped = False
        self._stage, self._since = "", 0.0
        self._has_begun = False
        self._summary: dict[str, Any] | None = None
        # A loop that ends without `close` leaves no selector and no shared memory behind all the same.
        atexit.register(_close_if_there, weakref.ref(self))

    # --- batches ----------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Batches of one pass: about as many as there are candidates to keep in an epoch."""
        config, accumulate = self._plan.config, self._plan.accumulate
        kept = self._plan.job.data.num_examples * config.selection.keep_rate
        return accumulate * max(1, math.ceil(kept / config.train.batch_size))

    def __iter__(self) -> Iterator[Any]:
        session = self._open()
        self._finish_if_skipped(session)
        self._handed.take_back()
        first, self._resume_at = self._resume_at, 0
        for position in range(first, len(self)):
            batch = self._next(session)
            self._position = position + 1
            yield batch
        self._position = 0

    def _next(self, session: Session) -> Any:
        self._enter("wait")
        if not self._handed.has_part:
            self._mind_the_clock(session)
            with session.spans.span("wait"):
                prepared = session.engine.next_batch(session.is_over)
            if prepared is None:
                raise session.keeper.failure or LoopError("the run is over: the loader was closed")
            if not self._has_begun:
                self._has_begun = True
                session.telemetry.begin()
            self._handed.add(prepared.batch, prepared.inputs)
        part = self._handed.next_part()
        self._enter("forward")
        return part

    def _mind_the_clock(self, session: Session) -> None:
        """Under a clock a batch is scored with the weights after the step before it: refuse to run ahead."""
        config = self._plan.config
        if not config.is_clocked or len(self._handed) <= config.lag:
            return
        if self._handed.weighed is None:
            raise self._ran_ahead()
        # A gradient scaler skipped the step; or the step still comes, and is refused then.
        self._finish(session, has_moved=False)
        self._is_taken_for_skipped = True

    def _ran_ahead(self) -> LoopError:
        return LoopError(
            f"mode = {self._plan.config.mode!r}: the next batch was asked for before the optimizer step of "
            "the last one, and it is scored with the weights after that step. Use mode = 'pipelined', or "
            "'fixed-lag' with sync.lag of at least the batches that the loop fetches ahead"
        )

    # --- losses -----------------------------------------------------------------------------------

    def weigh(self, losses: torch.Tensor) -> torch.Tensor:
        """The mean of a batch's losses, each counted as selection asks: what to call `backward` on."""
        due = self._due(losses)
        weigh = self._weigher(due)
        weighed = losses if weigh is None else losses * weigh(losses.detach())
        self._take(due, losses)
        return weighed.mean()

    def weights(self, losses: torch.Tensor) -> torch.Tensor:
        """How much each example of a batch counts, 1 on average: for loops that reduce losses themselves.

        In place of `weigh`, not besides it.
        """
        due = self._due(losses)
        weigh = self._weigher(due)
        weights = torch.ones_like(losses.detach()) if weigh is None else weigh(losses.detach())
        self._take(due, losses)
        return weights

    def skip(self) -> None:
        """The loop drops the oldest batch that it has: it counts as trained, and teaches selection "
        "nothing."""
        session = self._running("skip")
        if not len(self._handed):
            raise LoopError("skip: no batch is out")
        self._handed.finish()
        self._outcome = None
        session.engine.finish_step(session.step + 1, has_moved=False)

    def _due(self, losses: Any) -> Due:
        session = self._running("weigh")
        self._enter("weigh")
        if self._optimizer is None:
            raise LoopError(
                "weigh: no optimizer is attached, so nobody would know when a step is done. Give it to "
                "sbpipe.select(...), or call loader.attach(optimizer) before the first batch"
            )
        self._finish_if_skipped(session)
        self._is_taken_for_skipped = False
        due = self._handed.due()
        if not isinstance(losses, torch.Tensor) or losses.shape != (due.num_examples,):
            got = list(losses.shape) if isinstance(losses, torch.Tensor) else type(losses).__name__
            raise ModelError(
                f"weigh: got losses of shape {got}, want shape [{due.num_examples}]: one value per example "
                f"of the "
                "batch. reduction='none' is the usual fix"
            )
        return due

    def _weigher(self, due: Due) -> Any:
        session = self._running("weigh")
        return session.engine.weigher(due.flight.part(due.number))

    def _take(self, due: Due, losses: torch.Tensor) -> None:
        session, flight = self._running("weigh"), due.flight
        flight.losses.append(losses.detach())
        if flight.is_weighed:
            fresh = flight.losses[0] if len(flight.losses) == 1 else torch.cat(flight.losses)
            self._outcome = session.engine.take_losses(flight.batch, fresh, torch.empty(0))
        self._enter("backward")

    # --- steps ------------------------------------------------------------------------------------

    def attach(self, optimizer: torch.optim.Optimizer) -> "SelectedLoader":
        """The optimizer whose steps finish train batches; another one takes its place."""
        # Accelerate and Lightning wrap optimizers in one that has no hooks of its own.
        while isinstance(inner := getattr(optimizer, "optimizer", None), torch.optim.Optimizer):
            optimizer = inner
        if not hasattr(optimizer, "register_step_post_hook"):
            raise ModelError(
                f"attach: a {type(optimizer).__name__} has no register_step_post_hook. Give it a "
                f"torch.optim.Optimizer"
            )
        if self._hook is not None:
            self._hook.remove()
        self._optimizer = optimizer
        self._hook = optimizer.register_step_post_hook(lambda *_: self._stepped())
        return self

    def _stepped(self) -> None:
        session = self._session
        if session is None or self._optimizer is None:
            return
        if self._is_taken_for_skipped:
            raise self._ran_ahead()
        half = self._handed.half_weighed
        if half is not None:
            raise LoopError(
                f"the optimizer stepped after {len(half.losses)} of {len(half.parts)} batches of a train "
                f"batch. Give "
                "sbpipe.select(..., accumulate=N) the N that the loop accumulates gradients over"
            )
        if self._handed.weighed is not None:
            self._enter("optimizer")
            self._finish(session, has_moved=True)
            self._enter("between")

    def _finish_if_skipped(self, session: Session) -> None:
        """A gradient scaler steps over a batch whose gradients overflowed: it counts as trained."""
        if self._handed.weighed is not None:
            self._finish(session, has_moved=False)

    def _finish(self, session: Session, *, has_moved: bool) -> None:
        self._handed.finish()
        outcome, self._outcome = self._outcome, None
        session.engine.finish_step(session.step + 1, has_moved=has_moved)
        session.keeper.was_ready()
        assert outcome is not None, "its losses were taken"
        assert self._optimizer is not None, "it has stepped"
        with session.spans.span("log"):
            rate = float(self._optimizer.param_groups[0]["lr"])
            session.telemetry.step(outcome, rate, session.engine.steering.health.last)
            session.telemetry.progress(min(1.0, self._position / len(self)))

    def _enter(self, stage: str) -> None:
        """The loop goes into another stage; the time since the last call was spent in the one before."""
        now, session = time.perf_counter(), self._session
        if session is not None and self._stage in ("forward", "backward", "between"):
            spent_s = now - self._since
            session.spans.add(self._stage, self._since, spent_s)
            if self._stage == "between":
                self._leave_out(session, spent_s)
        self._stage, self._since = stage, now

    def _leave_out(self, session: Session, spent_s: float) -> None:
        """An evaluation or a checkpoint of the user's is no measure of how long a step takes."""
        if spent_s > max(_LONG_S, _LONG_STEPS * (session.engine.period_s or 0.0)):
            session.engine.leave_out(spent_s)

    # --- the run ----------------------------------------------------------------------------------

    @contextmanager
    def detached(self) -> Iterator[None]:
        """Steps of the optimizer meanwhile are none of this loader's: the loop trains on something else "
        "too."""
        optimizer, self._optimizer = self._optimizer, None
        try:
            yield
        finally:
            self._optimizer = optimizer

    @property
    def num_selectors(self) -> int:
        """Selectors that are ready now; 0 before the first batch."""
        return len(self._session.engine.roster.ready()) if self._session is not None else 0

    @property
    def last_ids(self) -> Ids:
        """The indices, in the data set, of the examples of the batch that was handed out last."""
        return self._handed.last_ids

    @property
    def run_dir(self) -> Path:
        """Where the run's files are: `sbpipe report`, `watch` and `top` take it."""
        return self._plan.path

    @property
    def accumulate(self) -> int:
        """Batches of one optimizer step."""
        return self._plan.accumulate

    @property
    def model(self) -> nn.Module:
        """The module that is trained, without what is wrapped around it."""
        return self._plan.job.model

    def _open(self) -> Session:
        if self._session is None:
            if self._summary is not None:
                raise LoopError("the loader was closed. Make another one with sbpipe.select")
            refuse_ranks()
            rehearse(self._plan)
            state, self._state = self._state, None
            self._session, self._has_begun = Session(self._plan, state), False
        return self._session

    def _running(self, what: str) -> Session:
        if self._session is None:
            raise LoopError(f"{what}: no batch was drawn from the loader yet")
        return self._session

    def state_dict(self) -> dict[str, Any]:
        """All that selection knows, for the user's own checkpoint; `torch.load(weights_only=True)` reads it.

        What was handed out and not trained counts as waiting: it comes first after `load_state_dict`.
        """
        if self._session is None:
            return self._state_given()
        position = max(0, self._position - self._handed.num_parts_out)
        return {"sbpipe": frozen(self._session.state()), "position": position % len(self)}

    def _state_given(self) -> dict[str, Any]:
        return {} if self._state is None else {"sbpipe": frozen(self._state), "position": self._resume_at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint; the model has its weights already, or gets them before the next batch."""
        if not state:
            return
        found = thawed(state["sbpipe"])
        if found["digest"] != digest(self._plan.config):
            raise LoopError(
                "load_state_dict: the state is of a run with other settings (batch_size, accumulate, keep, "
                "seed, policy or mode). Use the same ones, or begin anew without it"
            )
        if self._session is not None:
            self._session.close(RunEnd.STOPPED, "the loop goes on from a checkpoint")
            self._session, self._handed, self._outcome = None, Handed(), None
        self._state, self._resume_at, self._stage = found, int(state["position"]), ""

    def close(self) -> dict[str, Any]:
        """End the run: selectors go, the summary and its verdict are left; returns the numbers."""
        return self._close(RunEnd.FINISHED)

    def leave(self) -> None:
        """The program ends, and nobody said whether the loop was done: it was if its last pass was."""
        self._close(RunEnd.STOPPED if self._position or self._handed else RunEnd.FINISHED)

    def _close(self, end: RunEnd) -> dict[str, Any]:
        session = self._session
        if session is not None:
            self._finish_if_skipped(session)
            self._session = None
            self._summary = session.close(end)
            say_verdict(self._summary, self._plan.path)
        self._forget()
        return self._summary or {}

    def _fail(self, error: BaseException) -> None:
        session, self._session = self._session, None
        if session is not None:
            self._summary = {}
            session.fail(str(error) or type(error).__name__)
        self._forget()

    def _forget(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def __enter__(self) -> "SelectedLoader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self._fail(error)

    @property
    def events(self) -> Path:
        """The file of the run's events."""
        return self._plan.path / TRAINER_EVENTS


def _close_if_there(reference: "weakref.ref[SelectedLoader]") -> None:
    loader = reference()
    if loader is not None:
        loader.leave()
