"""Candidates in, one float32 score each out. Touches neither BatchNorm statistics nor any generator.

It keeps the model in single precision, which new weights are written into, and scores with a program derived
from it at the selector's precision. After new weights a few candidates are scored both ways, and how well the
ranks agree is kept.
"""

import copy
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sbpipe.errors import DataError, DeviceError, ModelError
from sbpipe.machine.devices import is_out_of_memory
from sbpipe.machine.layout import DTYPES, laid_out, layout_of, placed
from sbpipe.machine.numerics import full_float32, rounds_float32
from sbpipe.models.losses import PerExampleLoss
from sbpipe.models.residuals import Residual
from sbpipe.records import Floats
from sbpipe.scoring.agreement import SLICE, Agreement, agreement_of
from sbpipe.scoring.blindness import CHECKED
from sbpipe.scoring.captured import check_way, named
from sbpipe.scoring.compiling import way_out_of, why_not_compiled
from sbpipe.scoring.dynamic import DynamicProgram
from sbpipe.scoring.norms import Statistics
from sbpipe.scoring.places import places_of
from sbpipe.scoring.programs import ByteProgram, FloatProgram, Program
from sbpipe.scoring.queued import Again, Found, Queued, Reader

log = logging.getLogger("sbpipe.scoring")

_SAME, _SIMILAR = 1e-3, 0.5
"""Largest relative difference between a program's outputs and the model's: in fp32, and narrower."""


class Scored(NamedTuple):
    """What a forward pass says of some candidates; None where nobody asks, or the model is no classifier."""

    scores: Floats
    predictions: NDArray[np.int64] | None = None
    residuals: Floats | None = None
    places: NDArray[np.int64] | None = None


class Scorer:
    """Scores with a replica in evaluation mode at the selector's precision; the loss is always float32."""

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
        """`residual` is asked for the direction of each example's error too, where a policy goes by it."""
        self.model = placed(model.to(dtype=torch.float32), device).eval().requires_grad_(False)
        self.device = device
        self._layout = layout_of(self.model)
        self._loss, self._residual = loss, residual
        self._scale = scale
        check_way(compiled, device, is_own=False)
        self._compiles = compiled
        self._folds = True
        self._is_compared = False
        self._padded_to = 0
        self._is_pending = False
        self._is_sound: bool | Tensor = True
        self._reader = Reader(device)
        self._way = 0
        self._has_warned = False
        self.agreement, self.scale_agreement = Agreement(min_agreement), Agreement(min_agreement)
        """How well scores rank like fp32 at the same image size, and those like the ones at full size."""
        self.statistics = Statistics(self.model, statistics)
        """What normalisation layers compute with."""
        self.num_outputs = 0
        """Classes that predictions are of, once there are some."""
        self.num_overflowed = 0
        """Scores that were not finite."""
        self.slower: list[str] = []
        """Precisions to fall back to, the next one last."""
        self.use(precision)

    @torch.inference_mode()
    def use(self, precision: str) -> None:
        """Score at this precision from now on; in fp32 if the model cannot be."""
        self.agreement.forget()
        self._way += 1
        self.precision, self._program = self._make(precision)
        self._derive()
        self._is_pending = self.statistics.are_estimated

    def trial(self, precision: str) -> "Scorer":
        """Another scorer of the same model at another precision, to be measured beside this one."""
        trial = copy.copy(self)
        trial.agreement, trial.scale_agreement = Agreement(0.0), Agreement(0.0)
        trial.num_overflowed = 1  # nobody is warned of scores that nobody uses
        trial.use(precision)
        return trial

    def adopt(self, trial: Any) -> None:
        """Score as a trial does from now on."""
        self.agreement.forget()
        self._way += 1
        self.precision, self._program = trial.precision, trial._program
        # Weights may have come since the trial looked. The check that follows them widens the ranges of int8.
        self.weights_arrived()

    def _make(self, precision: str) -> tuple[str, Program]:
        try:
            if precision == "int8":
                if not self._folds:
                    raise ValueError("what is traced of its forward pass computes something else")
                return precision, self._in_bytes()
            return precision, FloatProgram(self.model, precision, folded=self._folds, compiled=self._compiles)
        # A user's model may resist being traced, copied or quantised in ways of its own.
        except Exception as error:
            if precision == "fp32" or isinstance(error, DeviceError) or is_out_of_memory(error):
                raise
            kind = "quantised" if precision == "int8" else f"cast to {precision}"
            log.warning(
                "selector.precision = %r: the model cannot be %s: %s. It is scored in fp32",
                precision,
                kind,
                error,
            )
            return "fp32", FloatProgram(self.model, "fp32", folded=self._folds, compiled=self._compiles)

    def _in_bytes(self) -> Program:
        """The model in integers, as far as the device has them; a DeviceError where it has none for it."""
        if self.device.type == "cpu":
            return ByteProgram(self.model)
        try:
            return DynamicProgram(self.model)
        except ValueError as error:
            raise DeviceError(
                f"selector.precision = 'int8': {error}. Write fp16, or auto for the fastest that ranks alike"
            ) from None

    @staticmethod
    def newest(chunks: Sequence[tuple[Tensor, Tensor]], count: int) -> tuple[Tensor, Tensor]:
        """The last candidates of several passes, at most so many."""
        inputs, targets = (torch.cat(parts) for parts in zip(*chunks, strict=True))
        return inputs[-count:], targets[-count:]

    @property
    def is_exact(self) -> bool:
        """Whether a score is the loss itself, so that there is nothing to check."""
        return self.precision == "fp32" and self._scale == 1.0 and not rounds_float32(self.device)

    def weights_arrived(self) -> None:
        """The model was written into."""
        # Derived at the next pass, not now: several versions may arrive between two leases, and folding,
        # casting or packing each of them would be wasted.
        self._is_pending = True
        self.agreement.weights_arrived()
        self.statistics.weights_arrived()

    @torch.inference_mode()
    def refresh(self, *, anyway: bool = False) -> bool:
        """Take weights that have arrived, if any did or `anyway`; whether it was done."""
        # Statistics that are estimated need candidates: then the next pass does it.
        if self.statistics.are_estimated or not (self._is_pending or anyway):
            return False
        self._derive()
        self._is_pending = False
        return True

    def _derive(self) -> None:
        self._is_sound = self._program.refresh()

    # --- before the first lease, and before a trial -----------------------------------------------

    @torch.inference_mode()
    def prepare(self, inputs: Tensor, targets: Tensor) -> None:
        """Try it on real candidates, and learn what int8 must know: what cannot work shows now."""
        finite = _finite_rows(inputs)
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
        self._refuse_size(inputs[:1])
        self._padded_to = len(inputs)
        if bool(finite.any()):
            self._compare(self._shrunk(inputs[finite][:SLICE]))
        for note in self._program.notes:
            log.warning("selector.precision = %r: %s", self.precision, note)
        self.score(inputs, targets)

    def _refuse_size(self, inputs: Tensor) -> None:
        if self._scale == 1.0:
            return
        if inputs.ndim != 4:
            shape = list(inputs.shape[1:])
            raise ModelError(
                f"selector.scale = {self._scale:g}: only images can be scored smaller, these are inputs of "
                f"{shape}. Write 1.0"
            )
        small = self._shrunk(inputs)
        try:
            self.model(self._laid_out(small))
        except RuntimeError as error:
            size = "x".join(str(side) for side in small.shape[2:])
            reason = f"the model does not take images of {size} ({error})"
            raise ModelError(
                f"selector.scale = {self._scale:g}: {reason}. Write a larger scale, or 1.0"
            ) from error

    def _compare(self, inputs: Tensor) -> None:
        """Compare with the model itself: a trace may miss what depends on more than its input."""
        # Folding changes which numbers are rounded: in TF32 that alone may differ by 1e-2.
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
            self._compile(inputs)
        if self.precision != "fp32" and not self._is_near(self._outputs, inputs, wanted, _SIMILAR):
            log.warning(
                "selector.precision = %r: the outputs are not near those in fp32: it is scored in fp32",
                self.precision,
            )
            self.use("fp32")

    def _computes(self, inputs: Tensor, wanted: Tensor) -> bool:
        """Whether what was traced and folded gives the model's outputs in fp32."""
        exact = self._program
        if self.precision != "fp32" or self._compiles:
            exact = FloatProgram(self.model, "fp32")
            exact.refresh()
        return self._is_near(exact, inputs, wanted, _SAME)

    def _is_near(
        self, program: Callable[[Tensor], Tensor], inputs: Tensor, wanted: Tensor, tolerance: float
    ) -> bool:
        try:
            difference = program(self._laid_out(inputs)).float() - wanted
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            log.warning("the model's graph cannot be computed: %s", str(error).strip().splitlines()[0])
            return False
        # Outputs that are not finite compare with nothing; scores made of them are counted as they come.
        return bool(difference.norm() <= tolerance * wanted.norm()) or not bool(torch.isfinite(wanted).all())

    def _compile(self, inputs: Tensor) -> None:
        try:
            self._outputs(inputs)
        # The compiler, and the compiler that it calls, fail in ways of their own.
        except Exception as error:
            way_out = f"{way_out_of(error)}write selector.compile = false"
            raise DeviceError(
                f"selector.compile = {named(self._compiles)}: the model cannot be compiled "
                f"({why_not_compiled(error)}). "
                f"{way_out[0].upper()}{way_out[1:]}"
            ) from error

    # --- every pass -------------------------------------------------------------------------------

    def score(self, inputs: Tensor, targets: Tensor) -> Floats:
        """The loss of each candidate. Scores that overflowed come out so: the policy never keeps them."""
        queued = self._queue(inputs, targets, lambda: (inputs, targets))
        return self._scored(queued, *self._reader([queued])).scores

    def examine(self, inputs: Tensor, targets: Tensor) -> Scored:
        """The loss of each candidate, the class a classifier gives it, its residual if that is asked for."""
        (scored,) = self.read([self.queue(inputs, targets, lambda: (inputs, targets))])
        return scored

    @torch.inference_mode()
    def queue(self, inputs: Tensor, targets: Tensor, again: Again) -> Queued:
        """Start what `examine` does; on an accelerator nobody waits for it. `again` gives the same inputs."""
        is_compared, was_estimated = self.statistics.is_due(len(inputs)), self.statistics.are_estimated
        if was_estimated and self._is_pending:
            self._estimate(inputs, targets, is_compared=is_compared)
        queued = self._queue(inputs, targets, again, was_estimated=was_estimated)
        if is_compared and not was_estimated:
            outputs = self.statistics.of_batch(self._laid_out(self._shrunk(inputs[:CHECKED])))
            queued.found["batch"] = self._losses(outputs, targets[:CHECKED])
        return queued

    def read(self, passes: Sequence[Queued]) -> Iterator[Scored]:
        """What queued passes found, in their order; waits once, for all of them."""
        for queued, found in zip(passes, self._reader(passes), strict=True):
            # What an earlier pass showed may have changed the precision, and with it all later ones.
            is_same = queued.way == self._way
            scored = self._scored(queued, found) if is_same else self._repeated(queued)
            if queued.was_estimated:
                self.statistics.num_estimated += queued.num_candidates
            elif "batch" in found:
                self._note_statistics(scored.scores[:CHECKED], found["batch"])
            yield scored

    def _repeated(self, queued: Queued) -> Scored:
        again = self._queue(*queued.again(), queued.again, is_checked=False)
        return self._scored(again, *self._reader([again]))

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
        # Before the pass itself, since int8 learns here the ranges that the pass then computes with.
        found = self._exact(inputs[:SLICE], targets[:SLICE]) if is_checked else {}
        outputs = self._outputs(self._shrunk(inputs))
        found["losses"] = self._loss(outputs, targets).float()
        if isinstance(self._is_sound, Tensor):
            found["is_sound"] = self._is_sound
        if inputs.is_floating_point():
            found["finite"] = _finite_rows(inputs)
        if self._residual is not None:
            found["residuals"] = self._residual(outputs, targets)
        if outputs.ndim == 2 and targets.ndim == 1 and not targets.is_floating_point():
            self.num_outputs = outputs.shape[1]
            found["predictions"] = outputs.argmax(dim=1)
            found["places"], found["are_places"] = places_of(outputs, targets)
        return Queued(found, len(inputs), self._way, is_checked, was_estimated, again)

    def _scored(self, queued: Queued, found: Found) -> Scored:
        """What a pass found, judged: by it the precision may change, for this pass and for the next ones."""
        if "is_sound" in found:
            self._is_sound = bool(found["is_sound"])
        losses = self._without_nonsense(found["losses"], found.get("finite"))
        if self._has_overflowed(losses, queued.again):
            return self._repeated(queued)
        if queued.is_checked:
            self._note(losses[:SLICE], found.get("exact"), found.get("full"))
        has_places = "places" in found and bool(found["are_places"])
        return Scored(
            losses,
            found.get("predictions"),
            found.get("residuals"),
            found["places"] if has_places else None,
        )

    def _without_nonsense(self, losses: Floats, finite: NDArray[np.bool_] | None) -> Floats:
        """NaN where the inputs or weights were not finite; counts what is not finite."""
        # With weights that are not finite no score can be believed, whatever a saturating layer made of it.
        if not self._is_sound:
            losses = np.full_like(losses, np.nan)
        # Found beforehand, because neither a fused ReLU nor a byte lets NaN through to the loss.
        elif finite is not None and not finite.all():
            losses = np.where(finite, losses, np.float32(np.nan))
        count = len(losses) - int(np.isfinite(losses).sum())
        if count and not self.num_overflowed:
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
    def _has_overflowed(self, losses: Floats, again: Again) -> bool:
        """Whether a narrow precision holds no score at all where fp32 does; then fp32 is used from now on."""
        if self.precision == "fp32" or np.isfinite(losses).any():
            return False
        inputs, targets = (part[:SLICE] for part in again())
        exact = self._losses(self.model(self._laid_out(self._shrunk(inputs))), targets)
        # Not finite in fp32 either: the model has diverged, which no precision can help.
        if not self._is_sound or not bool(exact.isfinite().any()):
            return False
        log.warning("no score in %s is finite: scoring in fp32 from now on", self.precision)
        self.use("fp32")
        return True

    def _exact(self, inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """The losses in fp32, learning the ranges of int8 on the way, and those at full size where candidates
        are scored smaller; nothing if values were not finite.
        """
        with full_float32(self.device):
            outputs = self._program.calibrate(self._laid_out(self._shrunk(inputs)))
        if outputs is None:
            return {}
        found = {"exact": self._losses(outputs, targets)}
        if self._scale != 1.0:
            found["full"] = self._losses(self.model(self._laid_out(inputs)), targets)
        return found

    def _losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self._loss(outputs.float(), targets).float()

    def _outputs(self, inputs: Tensor) -> Tensor:
        inputs = laid_out(inputs, self._layout, DTYPES.get(self.precision, torch.float32))
        if not self._compiles or self.precision == "int8":
            return self._program(inputs).float()
        # A compiled program knows one batch size: any other is padded to it, or it would be compiled again.
        self._padded_to = max(self._padded_to, len(inputs))
        missing = self._padded_to - len(inputs)
        padded = inputs if not missing else torch.cat([inputs, inputs[:1].expand(missing, *inputs.shape[1:])])
        return self._program(self._laid_out(padded))[: len(inputs)].float()

    def _laid_out(self, inputs: Tensor) -> Tensor:
        return laid_out(inputs, self._layout)

    def _shrunk(self, inputs: Tensor) -> Tensor:
        """Images at `scale` of their height and width, each pixel the mean of those it stands for."""
        if self._scale == 1.0 or inputs.ndim != 4:
            return inputs
        size = [max(1, round(side * self._scale)) for side in inputs.shape[2:]]
        return nn.functional.interpolate(inputs, size=size, mode="area")

    # --- statistics of normalisation layers -------------------------------------------------------

    def _estimate(self, inputs: Tensor, targets: Tensor, *, is_compared: bool) -> None:
        """Take weights that have arrived, with statistics of these candidates in place of the stored ones."""
        finite = _finite_rows(inputs)
        inputs, targets = self._laid_out(self._shrunk(inputs[finite])), targets[finite]
        compared = (inputs[:CHECKED], targets[:CHECKED])
        evaluated = self._losses(self.model(compared[0]), compared[1]) if is_compared else None
        outputs = self.statistics.estimate(inputs)
        self._derive()
        self._is_pending = False
        # What int8 has learned of ranges was learned under other statistics.
        if self.precision == "int8" and not self.statistics.num_estimated:
            self._program.calibrate(inputs[:SLICE])
        if evaluated is not None and outputs is not None:
            batch = self._losses(outputs[:CHECKED], compared[1])
            self._note_statistics(evaluated.cpu().numpy(), batch.cpu().numpy())

    def _note_statistics(self, evaluated: Floats, batch: Floats) -> None:
        changed = self.statistics.note(evaluated, batch)
        if changed:
            log.log(logging.WARNING if self.statistics.are_estimated else logging.INFO, "%s", changed)

    # --- checks -----------------------------------------------------------------------------------

    def _note(self, losses: Floats, exact: Floats | None, full: Floats | None) -> None:
        if exact is not None and full is not None:
            self.scale_agreement.note(agreement_of(exact, full))
        self.agreement.note(float("nan") if exact is None else agreement_of(losses, exact))
        if self.agreement.is_low and self.slower:
            found = f"scores in {self.precision} rank like fp32 only to {self.agreement.recent:.3f}"
            self.use(self.slower.pop())
            log.warning("%s: scoring in %s from now on", found, self.precision)
        elif (self.agreement.is_low or self.scale_agreement.is_low) and not self._has_warned:
            self._has_warned = True
            if self.agreement.is_low:
                found, knob = (
                    f"scores in {self.precision} rank like fp32 only to {self.agreement.recent:.3f}",
                    "precision",
                )
            else:
                found, knob = (
                    "scores at this selector.scale rank like full size only to "
                    f"{self.scale_agreement.recent:.3f}",
                    "scale",
                )
            log.warning("%s: choose another selector.%s", found, knob)


def _finite_rows(inputs: Tensor) -> Tensor:
    """Which examples hold nothing that is not finite; a sum tells, in one reading of them."""
    if not inputs.is_floating_point():
        return torch.ones(len(inputs), dtype=torch.bool, device=inputs.device)
    # In float32: a sum of finite half-precision numbers could overflow.
    return torch.isfinite(inputs.flatten(1).float().sum(dim=1))
