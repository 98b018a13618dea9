"""The common part of all scorers: follow the weights, read queued passes, judge the results, step back.

A subclass says how candidates go through its model (`_make`, `_derive`, `_queue`, `_scored`). The
consequences of the results are decided here; the precision may change. It must not know programs or losses.
"""

import copy
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from sbpipe.records import Floats
from sbpipe.scoring.agreement import Agreement, agreement_of
from sbpipe.scoring.blindness import CHECKED
from sbpipe.scoring.norms import Statistics
from sbpipe.scoring.queued import Again, Coming, Found, Queued, Reader, Scored

log = logging.getLogger("sbpipe.scoring")


class AnyScorer(ABC):
    """Scores with a replica in evaluation mode at the selector's precision; the loss is always float32."""

    precision: str
    """The precision it scores in."""

    def __init__(
        self, model: nn.Module, device: torch.device, *, min_agreement: float, statistics: str
    ) -> None:
        """`model` is on the device, in single precision; `statistics` is `selector.statistics`."""
        self.model, self.device = model, device
        self._program: Any = None
        self._is_pending = False
        self._is_sound: bool | Tensor = True
        self._reader = Reader(device)
        self._way = 0
        self._is_trial = self._has_warned = False
        self.agreement, self.scale_agreement = Agreement(min_agreement), Agreement(min_agreement)
        """Rank agreement of scores with fp32 at the same image size, and of those with fp32 at full size."""
        self.statistics = Statistics(model, statistics)
        """The statistics that normalisation layers compute with."""
        self.num_outputs = 0
        """The number of classes of predictions, once there are any."""
        self.num_overflowed = 0
        """Scores that were not finite."""
        self.slower: list[str] = []
        """Precisions to fall back to, the next one last."""

    # --- what a scorer is -------------------------------------------------------------------------

    @property
    @abstractmethod
    def is_exact(self) -> bool:
        """Whether a score is the loss itself, so that there is nothing to check."""

    @staticmethod
    @abstractmethod
    def newest(chunks: Sequence[tuple[Any, Tensor]], count: int) -> tuple[Any, Tensor]:
        """The last candidates of several passes, at most `count` if they can be cut."""

    @abstractmethod
    def prepare(self, inputs: Any, targets: Tensor) -> None:
        """Try it on real candidates, so that errors show now."""

    @abstractmethod
    def score(self, inputs: Any, targets: Tensor) -> Floats:
        """The loss of each candidate. Overflowed scores stay not finite: the policy never keeps such
        candidates.
        """

    @abstractmethod
    def _make(self, precision: str) -> tuple[str, Any]:
        """The program, and the precision it scores in: this one if the model allows it."""

    @abstractmethod
    def _derive(self) -> None:
        """Let the program take the present weights, and find out whether they are finite."""

    @abstractmethod
    def _start(self, inputs: Any, targets: Tensor, again: Again) -> Queued:
        """Start a pass, with any check or estimate of statistics that is due."""

    @abstractmethod
    def _queue(self, inputs: Any, targets: Tensor, again: Again, *, is_checked: bool | None = None) -> Queued:
        """Start a pass with the present weights; `is_checked` None = checked if a check is due."""

    @abstractmethod
    def _scored(self, queued: Queued, found: Found) -> Scored:
        """The judged result of a pass; the precision may change by it, for this pass and the next ones."""

    @abstractmethod
    def _is_finite_in_fp32(self, again: Again) -> bool:
        """Whether at least one of these candidates has a finite score in fp32."""

    # --- precisions and weights -------------------------------------------------------------------

    def use(self, precision: str) -> None:
        """Score at this precision from now on; in fp32 if the model does not allow it."""
        self.agreement.forget()
        self._way += 1
        self.precision, self._program = self._make(precision)
        self._derive()
        self._is_pending = self.statistics.are_estimated

    def trial(self, precision: str) -> Self:
        """Another scorer of the same model at another precision, to be measured beside this one."""
        trial = copy.copy(self)
        trial.agreement, trial.scale_agreement = Agreement(0.0), Agreement(0.0)
        trial._is_trial = True  # no warnings about scores that are not used
        trial.use(precision)
        return trial

    def adopt(self, trial: "AnyScorer") -> None:
        """Take over the precision and program of a trial."""
        self.agreement.forget()
        self._way += 1
        self.precision, self._program = trial.precision, trial._program
        # Weights may have arrived since the trial took them. The check after them widens the ranges of int8.
        self.weights_arrived()

    def weights_arrived(self) -> None:
        """Note that the model was overwritten."""
        # Derived at the next pass, not now: several versions may arrive between two leases, and folding,
        # casting or packing each of them would be wasted.
        self._is_pending = True
        self.agreement.weights_arrived()
        self.statistics.weights_arrived()

    @property
    def is_stale(self) -> bool:
        """Whether weights have arrived that `refresh` would take."""
        return self._is_pending and not self.statistics.are_estimated

    def refresh(self, *, anyway: bool = False) -> bool:
        """Take weights that have arrived, if any have or `anyway`; returns whether it was done."""
        # Estimating statistics needs candidates: then the next pass does it.
        if self.statistics.are_estimated or not (self._is_pending or anyway):
            return False
        self._derive()
        self._is_pending = False
        return True

    # --- passes -----------------------------------------------------------------------------------

    def examine(self, inputs: Any, targets: Tensor) -> Scored:
        """The loss of each candidate, its predicted class for a classifier, and its residual if asked for."""
        (scored,) = self.read([self.queue(inputs, targets, lambda: (inputs, targets))])
        return scored

    def begin(self, inputs: Any, targets: Tensor) -> Coming:
        """Start what `score` does; on an accelerator without waiting for it."""
        if self.device.type == "cpu":
            scores = self.score(inputs, targets)
            return Coming(len(inputs), lambda: scores)
        queued = self._queue(inputs, targets, lambda: (inputs, targets))
        findings = self._reader.start([queued])
        return Coming(len(inputs), lambda: self._scored(queued, *findings.wait()).scores, findings)

    def run(self, inputs: Any, targets: Tensor) -> None:
        """Start a pass that is not read, to time it."""
        self._queue(inputs, targets, lambda: (inputs, targets), is_checked=False)

    def queue(self, inputs: Any, targets: Tensor, again: Again) -> Queued:
        """Start what `examine` does, on an accelerator without waiting. `again` makes the same inputs once
        more.
        """
        before = self.agreement.mark(), self.statistics.mark()
        return replace(self._start(inputs, targets, again), before=before)

    def give_back(self, queued: Queued) -> None:
        """Undo the queueing of this pass and those behind it: they will not be read."""
        if queued.before is not None:
            self.agreement.go_back(queued.before[0])
            self.statistics.go_back(queued.before[1])

    def read(self, passes: Sequence[Queued]) -> Iterator[Scored]:
        """The results of queued passes, in order; waits once for all of them."""
        for queued, found in zip(passes, self._reader(passes), strict=True):
            # The result of an earlier pass may have changed the precision: then later ones must be repeated.
            is_same = queued.way == self._way
            scored = self._scored(queued, found) if is_same else self._repeated(queued)
            if queued.was_estimated:
                self.statistics.num_estimated += queued.num_candidates
            if "batch" in found:
                self._note_statistics(found.get("evaluated", scored.scores[:CHECKED]), found["batch"])
            yield scored

    def _repeated(self, queued: Queued) -> Scored:
        again = self._queue(*queued.again(), queued.again, is_checked=False)
        return self._scored(again, *self._reader([again]))

    # --- what follows from what was found ---------------------------------------------------------

    def _was_sound(self, queued: Queued, found: Found) -> bool:
        """Whether the weights of a pass were finite; remembered while these weights are in use."""
        if "is_sound" not in found:
            return bool(queued.is_sound)
        is_sound = bool(found["is_sound"])
        # Newer weights may have been taken since the pass was queued; its result does not apply to them.
        if self._is_sound is queued.is_sound:
            self._is_sound = is_sound
        return is_sound

    def _has_overflowed(self, scores: Floats, again: Again, *, is_sound: bool) -> bool:
        """Whether no score is finite in a lower precision but some are in fp32; then fp32 is used from now
        on.
        """
        if self.precision == "fp32" or np.isfinite(scores).any():
            return False
        # Not finite in fp32 either: the model has diverged, and no precision can help.
        if not is_sound or not self._is_finite_in_fp32(again):
            return False
        log.warning("no score in %s is finite: scoring in fp32 from now on", self.precision)
        self.use("fp32")
        return True

    def _note_statistics(self, evaluated: Floats, batch: Floats) -> None:
        changed = self.statistics.note(evaluated, batch)
        if changed:
            log.log(logging.WARNING if self.statistics.are_estimated else logging.INFO, "%s", changed)

    def _note_ranks(self, scores: Floats, exact: Floats | None) -> None:
        """Take in a check; if ranks do not agree, step back to a slower precision, or warn once."""
        self.agreement.note(float("nan") if exact is None else agreement_of(scores, exact))
        found = f"scores in {self.precision} rank like fp32 only to {self.agreement.recent:.3f}"
        if self.agreement.is_low and self.slower:
            self.use(self.slower.pop())
            log.warning("%s: scoring in %s from now on", found, self.precision)
        elif (self.agreement.is_low or self.scale_agreement.is_low) and not self._has_warned:
            self._has_warned = True
            knob = "precision"
            if not self.agreement.is_low:
                recent = self.scale_agreement.recent
                found, knob = (
                    f"scores at this selector.scale rank like full size only to {recent:.3f}",
                    "scale",
                )
            log.warning("%s: choose another selector.%s", found, knob)
