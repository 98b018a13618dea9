"""The loader that a user's loop draws batches from: selected, prefetched, and paired with their losses.

    for batch in loader:
        loader.weigh(losses(model, batch)).backward()
        optimizer.step(); optimizer.zero_grad()

It must not know any framework, nor how selection works.
"""

import atexit
import math
import sys
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import nn

from sbpipe.config import digest
from sbpipe.errors import ModelError, SbpipeError
from sbpipe.machine import devices
from sbpipe.ownloop.following import FollowingJourney
from sbpipe.ownloop.handed import LoopError
from sbpipe.ownloop.journey import Journey
from sbpipe.ownloop.leading import LeadingJourney
from sbpipe.ownloop.plan import Plan
from sbpipe.ownloop.ranks import group_of
from sbpipe.ownloop.rehearsal import rehearse
from sbpipe.ownloop.session import Session, say_verdict
from sbpipe.records import Ids, RunEnd
from sbpipe.trainer.checkpoint_file import frozen, thawed


class SelectedLoader:
    """Iterates over selected train batches; one pass is `len` batches, and all passes are one run."""

    def __init__(self, plan: Plan, batch_size: int) -> None:
        self._plan, self.batch_size = plan, batch_size
        self.dataset = plan.job.data.dataset
        self._journey: Journey | FollowingJourney | None = None
        self._optimizer: torch.optim.Optimizer | None = None
        self._hook: Any = None
        self._state: dict[str, Any] | None = None
        self._position = 0
        self._resume_at = 0
        self._summary: dict[str, Any] | None = None

    # --- batches and losses -----------------------------------------------------------------------

    def __len__(self) -> int:
        """Batches of one pass: about as many as there are candidates to keep in an epoch."""
        config, accumulate = self._plan.config, self._plan.accumulate
        kept = self._plan.job.data.num_examples * config.selection.keep_rate
        return accumulate * max(1, math.ceil(kept / config.train.batch_size))

    def __iter__(self) -> Iterator[Any]:
        with self._on_device():
            journey = self._open()
            first, self._resume_at = journey.begin_pass(self._resume_at), 0
        try:
            for position in range(first, len(self)):
                with self._on_device():
                    batch = journey.next_part()
                self._position = position + 1
                yield batch
        finally:
            journey.end_pass()
        # Here and not at the end of the program: if the last step diverged, the user's own line must raise.
        with self._on_device():
            journey.settle()
        self._position = 0

    def weigh(self, losses: torch.Tensor) -> torch.Tensor:
        """The mean of a batch's losses, weighted as selection asks: call `backward` on it."""
        weights = self._weights(losses)
        return (losses if weights is None else losses * weights).mean()

    def weights(self, losses: torch.Tensor) -> torch.Tensor:
        """The weight of each example of a batch, 1 on average: for loops that reduce losses themselves.

        Call it instead of `weigh`, not in addition to it.
        """
        weights = self._weights(losses)
        return torch.ones_like(losses.detach()) if weights is None else weights

    def _weights(self, losses: torch.Tensor) -> torch.Tensor | None:
        journey = self._running("weigh")
        if self._optimizer is None:
            raise LoopError(
                "weigh: no optimizer is attached, so nobody would know when a step is done. Give it to "
                "sbpipe.select(...), or call loader.attach(optimizer) before the first batch"
            )
        with self._on_device():
            return journey.weights(losses)

    def skip(self) -> None:
        """The loop drops its oldest batch: it counts as trained, and selection learns nothing from it."""
        journey = self._running("skip")
        with self._on_device():
            journey.skip()

    # --- steps ------------------------------------------------------------------------------------

    def attach(self, optimizer: torch.optim.Optimizer) -> "SelectedLoader":
        """Set the optimizer whose steps finish train batches, in place of an earlier one."""
        # Accelerate and Lightning wrap optimizers in one that has no hooks of its own.
        while isinstance(inner := getattr(optimizer, "optimizer", None), torch.optim.Optimizer):
            optimizer = inner
        if isinstance(optimizer, type) or not hasattr(optimizer, "register_step_post_hook"):
            raise ModelError(
                f"attach: a {type(optimizer).__name__} has no steps to follow. Give it a "
                "torch.optim.Optimizer that was made of the model's parameters"
            )
        self._forget()
        self._optimizer = optimizer
        self._hook = optimizer.register_step_post_hook(lambda *_: self._stepped())
        return self

    def _stepped(self) -> None:
        if self._journey is not None and not self._journey.failure and self._optimizer is not None:
            rate = float(self._optimizer.param_groups[0]["lr"])
            with self._on_device():
                self._journey.stepped(rate, min(1.0, self._position / len(self)))

    @contextmanager
    def detached(self) -> Iterator[None]:
        """Ignore the optimizer's steps inside this context, for loops that train on other data too."""
        optimizer, self._optimizer = self._optimizer, None
        try:
            yield
        finally:
            self._optimizer = optimizer

    # --- what it tells ----------------------------------------------------------------------------

    @property
    def num_selectors(self) -> int:
        """Selectors that are ready now; 0 before the first batch."""
        return self._journey.num_selectors if self._journey is not None else 0

    @property
    def steps(self) -> int:
        """Train batches that are done, over all resumes; 0 before the first batch."""
        return self._journey.step if self._journey is not None else 0

    @property
    def last_ids(self) -> Ids:
        """The indices, in the data set, of the examples of the batch that was handed out last."""
        return self._running("last_ids").handed.last_ids

    @property
    def run_dir(self) -> Path:
        """The run directory, as `sbpipe report`, `watch` and `top` take it."""
        return self._plan.path

    @property
    def accumulate(self) -> int:
        """Batches of one optimizer step."""
        return self._plan.accumulate

    @property
    def model(self) -> nn.Module:
        """The module that is trained, without what is wrapped around it."""
        return self._plan.job.model

    # --- beginning, state, end --------------------------------------------------------------------

    def _open(self) -> Journey | FollowingJourney:
        if self._journey is None:
            if self._summary is not None:
                raise LoopError("the loader was closed. Make another one with sbpipe.select")
            state, self._state = self._state, None
            self._journey = begin(self._plan, state)
            # Without `close`, selectors and shared memory must not be left behind either. Registered late, so
            # it is called early: the process group still exists when ranks leave the run.
            atexit.register(_leave_if_there, weakref.ref(self))
        return self._sound(self._journey)

    def _on_device(self) -> AbstractContextManager[None]:
        """Make the model's device current: it may not be the current device of the loop's thread."""
        return devices.current(next(self._plan.job.model.parameters()).device)

    def _running(self, what: str) -> Journey | FollowingJourney:
        if self._journey is None:
            raise LoopError(f"{what}: no batch was drawn from the loader yet. Iterate over it first")
        return self._sound(self._journey)

    @staticmethod
    def _sound(journey: Journey | FollowingJourney) -> Journey | FollowingJourney:
        if journey.failure:
            raise LoopError(
                f"the run has ended: {journey.failure}. Make another loader with sbpipe.select, or go on "
                "from an earlier state with load_state_dict"
            )
        return journey

    def state_dict(self) -> dict[str, Any]:
        """The state of selection for the user's own checkpoint; `torch.load(weights_only=True)` reads it.

        Batches handed out and not trained count as waiting: they come first after `load_state_dict`.
        """
        if self._summary is not None and self._state is None:
            raise LoopError("state_dict: the loader was closed, and its state went with it. Ask before that")
        if self._journey is None:
            return {} if self._state is None else {"sbpipe": frozen(self._state), "position": self._resume_at}
        with self._on_device():
            state = self._sound(self._journey).state()
        if not state:
            return {}
        position = max(0, self._position - self._journey.handed.num_parts_out)
        return {"sbpipe": frozen(state), "position": position % len(self)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint; load the model's weights before the next batch is drawn.

        An empty state is that of a loader before its first batch.
        """
        if not state:
            return
        if missing := {"sbpipe", "position"} - set(state):
            raise LoopError(
                f"load_state_dict: the state has no {max(missing)!r}, so it is not of such a loader. Give it "
                "what this loader's state_dict() returned, and not the checkpoint that holds it"
            )
        found = thawed(state["sbpipe"])
        if found["digest"] != digest(self._plan.config):
            raise LoopError(
                "load_state_dict: the state is of a run with other settings (batch_size, accumulate, keep, "
                "seed, policy or mode). Use the same ones, or begin anew without it"
            )
        if self._journey is not None and not self._journey.failure:
            with self._on_device():
                self._journey.close(RunEnd.STOPPED, "the loop goes on from a checkpoint")
        self._journey = None
        self._state, self._resume_at = found, int(state["position"])

    def close(self) -> dict[str, Any]:
        """End the run and its selectors, write the summary with its verdict; returns the numbers."""
        return self._close(RunEnd.FINISHED)

    def leave(self) -> None:
        """The program ends without `close`: the run counts as finished if the last pass was complete."""
        is_amid = bool(self._position or (self._journey is not None and self._journey.handed))
        try:
            self._close(RunEnd.STOPPED if is_amid else RunEnd.FINISHED)
        except SbpipeError as error:
            # At the program's exit no caller is left to raise to; the error has ended the run.
            sys.stderr.write(f"sbpipe: {error}\n")

    def _close(self, end: RunEnd) -> dict[str, Any]:
        journey = self._end()
        if journey is not None:
            with self._on_device():
                journey.look_back()
                self._summary = journey.close(end)
            if self._summary:
                say_verdict(self._summary, self._plan.path)
        return self._summary or {}

    def _fail(self, error: BaseException) -> None:
        journey = self._end()
        if journey is not None:
            with self._on_device():
                journey.fail(str(error) or type(error).__name__)

    def _end(self) -> Journey | FollowingJourney | None:
        """Forget the journey; returns it if it still has to be ended."""
        self._forget()
        journey, self._journey = self._journey, None
        if journey is None:
            return None
        self._summary = {}
        return None if journey.failure else journey

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


def begin(plan: Plan, state: dict[str, Any] | None) -> Journey | FollowingJourney:
    """The journey of this process: of a single process, of rank 0, or of a rank that follows rank 0."""
    device = next(plan.job.model.parameters()).device
    group = group_of(plan.config, device)
    rehearse(plan)
    if group is None:
        return Journey(Session(plan, state))
    if group.rank:
        return FollowingJourney(plan, group, device)
    return LeadingJourney(Session(plan, state, group), group)


def _leave_if_there(reference: "weakref.ref[SelectedLoader]") -> None:
    loader = reference()
    if loader is not None:
        loader.leave()
