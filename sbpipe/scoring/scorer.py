"""Candidates in, one float32 score each out. Touches neither BatchNorm statistics nor any generator.

It keeps the model in single precision, into which new weights are written, and scores with a program derived
from it at the selector's precision. After new weights a few candidates are scored both ways, to measure how
well the ranks agree.
"""

import logging
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sbpipe.errors import DataError, ModelError
from sbpipe.machine.layout import DTYPES, laid_out, layout_of, placed
from sbpipe.machine.numerics import full_float32, rounds_float32
from sbpipe.models.losses import PerExampleLoss
from sbpipe.models.residuals import Residual
from sbpipe.records import Floats
from sbpipe.scoring.agreement import SLICE, agreement_of
from sbpipe.scoring.any_scorer import AnyScorer
from sbpipe.scoring.blindness import CHECKED
from sbpipe.scoring.captured import check_way, named
from sbpipe.scoring.compiling import told
from sbpipe.scoring.likeness import SAME, SIMILAR, believable, finite_rows, is_near, rows_to_learn_from
from sbpipe.scoring.making import program_for
from sbpipe.scoring.places import places_of
from sbpipe.scoring.programs import FloatProgram, Program
from sbpipe.scoring.queued import Again, Found, Queued, Scored
from sbpipe.scoring.scale import Scale

log = logging.getLogger("sbpipe.scoring")


class Scorer(AnyScorer):
    """Scores tensors by a model and the loss of its outputs."""

    _program: Program

    def __init__(
        self,
        model: nn.Module,
        loss: PerExampleLoss,
        *,
        precision: str,
        device: torch.device,
        scale: float = 1.0,
        compiled: bool | str = False,
        min_agreement: float = 0.0,
        residual: Residual | None = None,
        statistics: str = "auto",
    ) -> None:
        """`residual` computes the residual of each example, where a policy uses it."""
        model = placed(model.to(dtype=torch.float32), device).eval().requires_grad_(False)
        super().__init__(model, device, min_agreement=min_agreement, statistics=statistics)
        self._layout = layout_of(self.model)
        self._loss, self._residual = loss, residual
        self._shrunk = Scale(scale)
        check_way(compiled, device, is_own=False)
        self._compiles = compiled
        self._folds = True
        self._is_compared = False
        self._padded_to = 0
        self.use(precision)

    @torch.inference_mode()
    def _make(self, precision: str) -> tuple[str, Program]:
        return program_for(self.model, precision, self.device, folded=self._folds, compiled=self._compiles)

    @staticmethod
    def newest(chunks: Sequence[tuple[Tensor, Tensor]], count: int) -> tuple[Tensor, Tensor]:
        """The last candidates of several passes, at most `count`."""
        inputs, targets = (torch.cat(parts) for parts in zip(*chunks, strict=True))
        return inputs[-count:], targets[-count:]

    @property
    def is_exact(self) -> bool:
        """Whether a score is the loss itself, so that there is nothing to check."""
        return self.precision == "fp32" and self._shrunk.is_full and not rounds_float32(self.device)

    @torch.inference_mode()
    def _derive(self) -> None:
        self._is_sound = self._program.refresh()

    # --- before the first lease, and before a trial -----------------------------------------------

    @torch.inference_mode()
    def prepare(self, inputs: Tensor, targets: Tensor) -> None:
        """Try it on real candidates, so that errors show now, and calibrate int8."""
        finite = finite_rows(inputs)
        if self.precision == "int8" and not bool(finite.all()):
            bad = len(inputs) - int(finite.sum())
            reason = (
                f"{bad} of the first {len(inputs)} candidates hold values that are not finite (NaN or "
                "infinite)"
            )
            raise DataError(
                f"selector.precision = 'int8': {reason}, so no range can be learned. Repair them, or write "
                "fp32"
            )
        self._shrunk.refuse(inputs[:1], lambda small: self.model(self._laid_out(small)))
        self._padded_to = len(inputs)
        if bool(finite.any()):
            self._compare(self._shrunk(inputs[finite][:SLICE]))
        for note in self._program.notes:
            log.warning("selector.precision = %r: %s", self.precision, note)
        self.score(inputs, targets)

    def _compare(self, inputs: Tensor) -> None:
        """Compare with the model itself: a trace misses whatever depends on more than the input."""
        # Folding changes which numbers are rounded: in TF32 that alone may cause a difference of 1e-2.
        with full_float32(self.device):
            wanted = self.model(self._laid_out(inputs)).float()
            is_other = self._folds and not self._is_compared and not self._computes(inputs, wanted)
        self._is_compared = self._is_compared or self._folds
        if is_other:
            self._folds = False
            log.warning(
                "traced, the model computes something else than it does itself: it is scored untraced, "
                "which is slower"
            )
            self.use(self.precision)
        if self.precision == "int8" and self._program.calibrate(self._laid_out(inputs)) is None:
            raise ModelError(
                "selector.precision = 'int8': the first candidates give values that are not finite, so their "
                "range cannot be measured. "
                "Check the data and the model, or write fp32"
            )
        if self._compiles and self.precision != "int8":
            with told(named(self._compiles)):
                self._outputs(inputs)
        if self.precision != "fp32" and not is_near(self._outputs, self._laid_out(inputs), wanted, SIMILAR):
            log.warning(
                "selector.precision = %r: the outputs are not near those in fp32: it is scored in fp32",
                self.precision,
            )
            self.use("fp32")

    def _computes(self, inputs: Tensor, wanted: Tensor) -> bool:
        """Whether the traced and folded model has the model's outputs in fp32."""
        exact = self._program
        if self.precision != "fp32" or self._compiles:
            exact = FloatProgram(self.model, "fp32")
            exact.refresh()
        return is_near(exact, self._laid_out(inputs), wanted, SAME)

    # --- every pass -------------------------------------------------------------------------------

    def score(self, inputs: Tensor, targets: Tensor) -> Floats:
        """The loss of each candidate. Overflowed scores stay not finite: the policy never keeps such
        candidates.
        """
        queued = self._queue(inputs, targets, lambda: (inputs, targets))
        return self._scored(queued, *self._reader([queued])).scores

    @torch.inference_mode()
    def _start(self, inputs: Tensor, targets: Tensor, again: Again) -> Queued:
        is_compared, was_estimated = self.statistics.is_due(len(inputs)), self.statistics.are_estimated
        both = {}
        if was_estimated and self._is_pending:
            both = self._estimate(inputs, targets, is_compared=is_compared)
        queued = self._queue(inputs, targets, again, was_estimated=was_estimated)
        queued.found.update(both)
        if is_compared and not was_estimated:
            outputs = self.statistics.of_batch(self._laid_out(self._shrunk(inputs[:CHECKED])))
            queued.found["batch"] = self._losses(outputs, targets[:CHECKED])
        return queued

    @torch.inference_mode()
    def _queue(
        self,
        inputs: Tensor,
        targets: Tensor,
        again: Again,
        *,
        was_estimated: bool = False,
        is_checked: bool | None = None,
    ) -> Queued:
        self.refresh()
        if is_checked is None:
            is_checked = not self.is_exact and self.agreement.is_due(len(inputs))
        # Before the pass itself: here int8 updates the ranges that the pass then uses.
        found = self._exact(inputs[:SLICE], targets[:SLICE]) if is_checked else {}
        outputs = self._outputs(self._shrunk(inputs))
        found["losses"] = self._loss(outputs, targets).float()
        if isinstance(self._is_sound, Tensor):
            found["is_sound"] = self._is_sound
        if inputs.is_floating_point():
            found["finite"] = finite_rows(inputs)
        if self._residual is not None:
            found["residuals"] = self._residual(outputs, targets)
        if outputs.ndim == 2 and targets.ndim == 1 and not targets.is_floating_point():
            self.num_outputs = outputs.shape[1]
            found["predictions"] = outputs.argmax(dim=1)
            found["places"], found["are_places"] = places_of(outputs, targets)
        return Queued(found, len(inputs), self._way, is_checked, was_estimated, again, self._is_sound)

    def _scored(self, queued: Queued, found: Found) -> Scored:
        is_sound = self._was_sound(queued, found)
        losses = self._without_nonsense(found["losses"], found.get("finite"), is_sound=is_sound)
        if self._has_overflowed(losses, queued.again, is_sound=is_sound):
            return self._repeated(queued)
        if queued.is_checked:
            exact, full = found.get("exact"), found.get("full")
            if exact is not None and full is not None:
                self.scale_agreement.note(agreement_of(exact, full))
            self._note_ranks(losses[:SLICE], exact)
        has_places = "places" in found and bool(found["are_places"])
        return Scored(
            losses,
            found.get("predictions"),
            found.get("residuals"),
            found["places"] if has_places else None,
        )

    def _without_nonsense(
        self, losses: Floats, finite: NDArray[np.bool_] | None, *, is_sound: bool
    ) -> Floats:
        """NaN where the inputs or weights were not finite; counts what is not finite."""
        losses = believable(losses, is_sound=is_sound, finite=finite)
        count = len(losses) - int(np.isfinite(losses).sum())
        if count and not self.num_overflowed and not self._is_trial:
            found = (
                f"{count} of {len(losses)} scores in {self.precision} are not finite: such candidates "
                "are not chosen"
            )
            way_out = (
                "" if self.precision == "fp32" else ". If there are many, set selector.precision = 'fp32'"
            )
            log.warning("%s%s", found, way_out)
        self.num_overflowed += count
        return losses

    @torch.inference_mode()
    def _is_finite_in_fp32(self, again: Again) -> bool:
        inputs, targets = (part[:SLICE] for part in again())
        exact = self._losses(self.model(self._laid_out(self._shrunk(inputs))), targets)
        return bool(exact.isfinite().any())

    def _exact(self, inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """The losses in fp32, and those at full size where candidates are scored smaller; {} if values were
        not finite. Also updates the ranges of int8.
        """
        with full_float32(self.device):
            outputs = self._program.calibrate(self._laid_out(self._shrunk(inputs)))
        if outputs is None:
            return {}
        found = {"exact": self._losses(outputs, targets)}
        if not self._shrunk.is_full:
            found["full"] = self._losses(self.model(self._laid_out(inputs)), targets)
        return found

    def _losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self._loss(outputs.float(), targets).float()

    def _outputs(self, inputs: Tensor) -> Tensor:
        inputs = laid_out(inputs, self._layout, DTYPES.get(self.precision, torch.float32))
        if not self._compiles or self.precision == "int8":
            return self._program(inputs).float()
        # A compiled program has one batch size: smaller batches are padded, or it would be compiled again.
        self._padded_to = max(self._padded_to, len(inputs))
        missing = self._padded_to - len(inputs)
        padded = inputs if not missing else torch.cat([inputs, inputs[:1].expand(missing, *inputs.shape[1:])])
        return self._program(self._laid_out(padded))[: len(inputs)].float()

    def _laid_out(self, inputs: Tensor) -> Tensor:
        return laid_out(inputs, self._layout)

    # --- statistics of normalisation layers -------------------------------------------------------

    def _estimate(self, inputs: Tensor, targets: Tensor, *, is_compared: bool) -> dict[str, Tensor]:
        """Take weights that have arrived, with statistics of these candidates in place of the stored ones.

        Returns the losses both ways, if they are compared.
        """
        rows = rows_to_learn_from(inputs)
        inputs, targets = self._laid_out(self._shrunk(inputs[rows])), targets[rows]
        compared = (inputs[:CHECKED], targets[:CHECKED])
        evaluated = self._losses(self.model(compared[0]), compared[1]) if is_compared else None
        outputs = self.statistics.estimate(inputs)
        self._derive()
        self._is_pending = False
        # The ranges of int8 were found under other statistics.
        if self.precision == "int8" and not self.statistics.num_estimated:
            self._program.calibrate(inputs[:SLICE])
        if evaluated is None or outputs is None:
            return {}
        return {"evaluated": evaluated, "batch": self._losses(outputs[:CHECKED], compared[1])}
