"""What every scorer does alike: follow the weights, read queued passes, judge what they found, step back.

A scorer says how candidates go through its model (`_make`, `_derive`, `_queue`, `_scored`). What follows from
what they found is decided here: by it the precision may change. It must not know programs or losses.
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
    """What it scores in."""

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
        """How well scores rank like fp32 at the same image size, and those like the ones at full size."""
        self.statistics = Statistics(model, statistics)
        """What normalisation layers compute with."""
        self.num_outputs = 0
        """Classes that predictions are of, once there are some."""
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
        """The last candidates of several passes, at most so many if they can be cut."""

    @abstractmethod
    def prepare(self, inputs: Any, targets: Tensor) -> None:
        """Try it on real candidates: what cannot work shows now."""

    @abstractmethod
    def score(self, inputs: Any, targets: Tensor) -> Floats:
        """The loss of each candidate. Scores that overflowed come out so: the policy never keeps them."""

    @abstractmethod
    def _make(self, precision: str) -> tuple[str, Any]:
        """The precision that the model can be scored in, this one if it can, and the program."""

    @abstractmethod
    def _derive(self) -> None:
        """Make the program take the weights; learn whether they are finite."""

    @abstractmethod
    def _start(self, inputs: Any, targets: Tensor, again: Again) -> Queued:
        """Start a pass, with what has to be found out about statistics."""

    @abstractmethod
    def _queue(self, inputs: Any, targets: Tensor, again: Again, *, is_checked: bool | None = None) -> Queued:
        """Start a pass with the weights as they are; None = it is checked if a check is due."""

    @abstractmethod
    def _scored(self, queued: Queued, found: Found) -> Scored:
        """What a pass found, judged: by it the precision may change, for this pass and for the next ones."""

    @abstractmethod
    def _is_finite_in_fp32(self, again: Again) -> bool:
        """Whether fp32 holds the score of one of these candidates."""

    # --- precisions and weights -------------------------------------------------------------------

    def use(self, precision: str) -> None:
        """Score at this precision from now on; in fp32 if the model cannot be."""
        self.agreement.forget()
        self._way += 1
        self.precision, self._program = self._make(precision)
        self._derive()
        self._is_pending = self.statistics.are_estimated

    def trial(self, precision: str) -> Self:
        """Another scorer of the same model at another precision, to be measured beside this one."""
        trial = copy.copy(self)
        trial.agreement, trial.scale_agreement = Agreement(0.0), Agreement(0.0)
        trial._is_trial = True  # nobody is warned of scores that nobody uses
        trial.use(precision)
        return trial

    def adopt(self, trial: "AnyScorer") -> None:
        """Score as a trial does from now on."""
        self.agreement.forget()
        self._way += 1
        self.precision, self._program = trial.precision, trial._program
        # Weights may have come since the trial looked. The check that follows them widens the ranges of int8.
        self.weights_arrived()

    def weights_arrived(self) -> None:
        """The model was written into."""
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
        """Take weights that have arrived, if any did or `anyway`; whether it was done."""
        # Statistics that are estimated need candidates: then the next pass does it.
        if self.statistics.are_estimated or not (self._is_pending or anyway):
            return False
        self._derive()
        self._is_pending = False
        return True

    # --- passes -----------------------------------------------------------------------------------

    def examine(self, inputs: Any, targets: Tensor) -> Scored:
        """The loss of each candidate, the class a classifier gives it, its residual if that is asked for."""
        (scored,) = self.read([self.queue(inputs, targets, lambda: (inputs, targets))])
        return scored

    def begin(self, inputs: Any, targets: Tensor) -> Coming:
        """Start what `score` does; on an accelerator nobody waits for it."""
        if self.device.type == "cpu":
            scores = self.score(inputs, targets)
            return Coming(len(inputs), lambda: scores)
        queued = self._queue(inputs, targets, lambda: (inputs, targets))
        findings = self._reader.start([queued])
        return Coming(len(inputs), lambda: self._scored(queued, *findings.wait()).scores, findings)

    def run(self, inputs: Any, targets: Tensor) -> None:
        """Start a pass that nobody will read, to see how long it takes."""
        self._queue(inputs, targets, lambda: (inputs, targets), is_checked=False)

    def queue(self, inputs: Any, targets: Tensor, again: Again) -> Queued:
        """Start what `examine` does; on an accelerator nobody waits for it. `again` gives the same inputs."""
        before = self.agreement.mark(), self.statistics.mark()
        return replace(self._start(inputs, targets, again), before=before)

    def give_back(self, queued: Queued) -> None:
        """This pass and those behind it will not be read: as if they had never been queued."""
        if queued.before is not None:
            self.agreement.go_back(queued.before[0])
            self.statistics.go_back(queued.before[1])

    def read(self, passes: Sequence[Queued]) -> Iterator[Scored]:
        """What queued passes found, in their order; waits once, for all of them."""
        for queued, found in zip(passes, self._reader(passes), strict=True):
            # What an earlier pass showed may have changed the precision, and with it all later ones.
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
        """Whether the weights of a pass were finite; remembered for as long as they are those in use."""
        if "is_sound" not in found:
            return bool(queued.is_sound)
        is_sound = bool(found["is_sound"])
        # Newer ones may have been taken since it was queued, and it knows nothing of them.
        if self._is_sound is queued.is_sound:
            self._is_sound = is_sound
        return is_sound

    def _has_overflowed(self, scores: Floats, again: Again, *, is_sound: bool) -> bool:
        """Whether a narrow precision holds no score at all where fp32 does; then fp32 is used from now on."""
        if self.precision == "fp32" or np.isfinite(scores).any():
            return False
        # Not finite in fp32 either: the model has diverged, which no precision can help.
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
        """Take in a check; step back to a slower precision, or say so once, where ranks are not alike."""
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
