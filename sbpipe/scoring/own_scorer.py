"""Scores batches of any kind by a user's own `losses(model, batch)`; otherwise like `Scorer`.

The user's function gets a stand-in for the model. If the model is called with one tensor and can be traced,
the stand-in uses the same folded, cast or quantised program as `Scorer`; any other call goes to the model
itself, under autocast. It must not know how a batch was made.
"""

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sbpipe.errors import ModelError
from sbpipe.machine.devices import is_out_of_memory
from sbpipe.machine.layout import DTYPES, laid_out, layout_of
from sbpipe.machine.numerics import full_float32, rounds_float32
from sbpipe.models.stand_in import Losses, StandIn, guessed, residuals_of
from sbpipe.records import Floats, Lot
from sbpipe.scoring.any_scorer import AnyScorer
from sbpipe.scoring.captured import check_way
from sbpipe.scoring.dynamic import DynamicProgram
from sbpipe.scoring.likeness import SAME, believable
from sbpipe.scoring.norms import batch_norms, batch_statistics
from sbpipe.scoring.places import places_of
from sbpipe.scoring.programs import ByteProgram, FloatProgram, Program
from sbpipe.scoring.queued import Again, Found, Queued, Scored

log = logging.getLogger("sbpipe.scoring")


class OwnScorer(AnyScorer):
    """Scores batches of any kind by a user's function of a model and a batch."""

    _program: Program | DynamicProgram | None

    def __init__(
        self,
        model: nn.Module,
        losses: Losses,
        *,
        precision: str,
        device: torch.device,
        compiled: bool | str = False,
        min_agreement: float = 0.0,
        statistics: str = "auto",
        has_residuals: bool = True,
    ) -> None:
        model = model.to(device=device, dtype=torch.float32).eval().requires_grad_(False)
        super().__init__(model, device, min_agreement=min_agreement, statistics=statistics)
        self._layout = layout_of(self.model)
        self._losses, self._has_residuals = losses, has_residuals
        check_way(compiled, device, is_own=True)
        mode = compiled if isinstance(compiled, str) else None
        self._run: Any = torch.compile(self.model, mode=mode) if compiled else self.model
        self._exact = StandIn(self.model, self.model)
        self._is_traceable = not compiled
        self._num_logits = 0
        self._is_compared = False
        self.use(precision)

    def use(self, precision: str) -> None:
        """Score at this precision from now on; in fp32 if the model does not allow it."""
        super().use(precision)
        self._stand_in = StandIn(self.model, self._answer)

    @torch.no_grad()
    def _make(self, precision: str) -> tuple[str, Program | DynamicProgram | None]:
        # On an accelerator only linear layers use integers, which needs no trace.
        if not self._is_traceable or (precision == "int8" and self.device.type != "cpu"):
            return self._untraced(precision)
        try:
            if precision == "int8":
                return precision, ByteProgram(self.model)
            return precision, FloatProgram(self.model, precision)
        # A user's model may raise any error when traced, copied or quantised.
        except Exception as error:
            if is_out_of_memory(error):
                raise
            log.info("selector.precision = %r: the model is not traced: %s", precision, error)
            return self._untraced(precision)

    def _untraced(self, precision: str) -> tuple[str, DynamicProgram | None]:
        if precision != "int8":
            return precision, None
        try:
            return precision, DynamicProgram(self.model)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            level = logging.INFO if self._is_trial else logging.WARNING
            log.log(
                level, "selector.precision = 'int8': the model cannot be (%s). It is scored in fp32", error
            )
            return "fp32", None

    def _answer(self, *args: Any, **kwargs: Any) -> Any:
        """The model's outputs at the precision in use."""
        if isinstance(self._program, DynamicProgram):
            return self._program(*args, **kwargs)
        if self._program is not None and len(args) == 1 and not kwargs and isinstance(args[0], Tensor):
            dtype = DTYPES.get(self.precision, torch.float32)
            return self._program(laid_out(args[0], self._layout, dtype))
        dtype = DTYPES.get(self.precision, torch.float32)
        with torch.autocast(self.device.type, dtype, enabled=dtype != torch.float32):
            return self._run(*args, **kwargs)

    @staticmethod
    def newest(chunks: Sequence[tuple[Lot, Tensor]], count: int) -> tuple[Lot, Tensor]:
        """The whole last batch: it cannot be cut."""
        return chunks[-1]

    @property
    def is_exact(self) -> bool:
        """Whether a score is the loss itself, so that there is nothing to check."""
        return self.precision == "fp32" and not rounds_float32(self.device)

    @torch.no_grad()
    def _derive(self) -> None:
        self._is_sound = self._program is None or self._program.refresh()

    # --- passes -----------------------------------------------------------------------------------

    def prepare(self, lot: Lot, targets: Tensor) -> None:
        """Try it on real candidates, so that errors show now."""
        with full_float32(self.device):
            exact = self._evaluated(self._exact, lot)
            if self._program is not None and not self._is_compared:
                self._is_compared = True
                self._compare(lot, exact)
        self.examine(lot, targets)

    def _compare(self, lot: Lot, exact: Floats) -> None:
        """Compare with the model itself: a trace misses whatever depends on more than the input."""
        try:
            found = self._evaluated(self._stand_in, lot)
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            found = np.full_like(exact, np.nan)
        scale = float(np.abs(exact).max()) if len(exact) else 0.0
        is_exact = self.precision == "fp32"
        if is_exact and not bool(np.abs(found - exact).max() <= SAME * max(scale, 1e-6)):
            log.info("traced, the model computes something else than it does itself: it is scored untraced")
            self._is_traceable = False
            self.use(self.precision)

    def score(self, lot: Lot, targets: Tensor) -> Floats:
        """The loss of each candidate."""
        self.refresh()
        return self._evaluated(self._stand_in, lot)

    def _start(self, lot: Lot, targets: Tensor, again: Again) -> Queued:
        is_compared, was_estimated = self.statistics.is_due(lot.num_examples), self.statistics.are_estimated
        both = {}
        if is_compared:
            both["evaluated"] = self._exactly(lot)
        if was_estimated and self._is_pending:
            both["batch"] = self._of_batch(lot, kept=True)
            self._derive()
            self._is_pending = False
        elif is_compared:
            both["batch"] = self._of_batch(lot, kept=False)
        queued = self._queue(lot, targets, again)
        if is_compared:
            queued.found.update(both)
        return queued

    def _queue(self, lot: Lot, targets: Tensor, again: Again, *, is_checked: bool | None = None) -> Queued:
        self.refresh()
        if is_checked is None:
            is_checked = not self.is_exact and self.agreement.is_due(lot.num_examples)
        with torch.set_grad_enabled(self._has_residuals):
            losses = self._checked(self._stand_in.evaluate(self._losses, lot.tree), lot)
        gradients = self._stand_in.gradients(losses)
        found = {"losses": losses.detach()}
        if isinstance(self._is_sound, Tensor):
            found["is_sound"] = self._is_sound
        with torch.no_grad():
            found |= self._told_by(losses, gradients)
        if is_checked:
            with full_float32(self.device), torch.no_grad():
                found["exact"] = self._checked(self._exact.evaluate(self._losses, lot.tree), lot)
        return Queued(
            found,
            lot.num_examples,
            self._way,
            is_checked,
            self.statistics.are_estimated,
            again,
            self._is_sound,
        )

    def _told_by(self, losses: Tensor, gradients: list[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
        """Residuals, and predictions of a classifier. On an accelerator it is known only later whether the
        model is one, so residuals are computed both ways.
        """
        guess = guessed(gradients)
        known, is_known = (None, None) if guess is None else guess
        is_far = self.device.type != "cpu"
        if is_known is not None and not is_far and not bool(is_known):
            known = None
        found = {}
        if self._has_residuals and known is not None:
            found["residuals"] = residuals_of(losses, gradients, known)
        if self._has_residuals and (known is None or is_far):
            found["other_residuals"] = residuals_of(losses, gradients, None)
        if known is not None and is_known is not None:
            self._num_logits = known.logits.shape[1]
            found["is_known"], found["predictions"] = is_known, known.logits.argmax(dim=1)
            found["places"], _ = places_of(known.logits, known.targets)
        return found

    def _scored(self, queued: Queued, found: Found) -> Scored:
        is_sound = self._was_sound(queued, found)
        scores = believable(found["losses"], is_sound=is_sound)
        self.num_overflowed += len(scores) - int(np.isfinite(scores).sum())
        if self._has_overflowed(scores, queued.again, is_sound=is_sound):
            return self._repeated(queued)
        if queued.is_checked:
            self._note_ranks(scores, found["exact"])
        if not bool(found.get("is_known", False)):
            return Scored(scores, None, found.get("other_residuals"))
        self.num_outputs = self._num_logits
        return Scored(scores, found["predictions"], found.get("residuals"), found["places"])

    def _is_finite_in_fp32(self, again: Again) -> bool:
        return bool(np.isfinite(self._evaluated(self._exact, again()[0])).any())

    @torch.no_grad()
    def _evaluated(self, stand_in: StandIn, lot: Lot) -> Floats:
        losses: Floats = self._checked(stand_in.evaluate(self._losses, lot.tree), lot).cpu().numpy()
        return losses

    @staticmethod
    def _checked(losses: Any, lot: Lot) -> Tensor:
        if losses.shape != (lot.num_examples,):
            raise ModelError(
                f"losses: gave shape {list(losses.shape)} for {lot.num_examples} examples. One value per "
                "example is needed: reduction='none' is the usual fix"
            )
        return losses  # type: ignore[no-any-return]

    @torch.no_grad()
    def _exactly(self, lot: Lot) -> Tensor:
        return self._checked(self._exact.evaluate(self._losses, lot.tree), lot)

    def _of_batch(self, lot: Lot, *, kept: bool) -> Tensor:
        """The losses with the statistics of this batch, which are stored if `kept`."""
        with batch_statistics(batch_norms(self.model), kept=kept):
            return self._exactly(lot)
