"""The scorer: candidates in, one float32 score each out. Touches neither BatchNorm statistics nor any generator.

It keeps the model in single precision, which new weights are written into, and scores with a program derived from it at the
selector's precision. After new weights a few candidates are scored both ways, and how well the ranks agree is kept.
"""

import logging

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sbpipe.devices import is_out_of_memory
from sbpipe.errors import DataError, DeviceError, ModelError
from sbpipe.fidelity import spearman
from sbpipe.layout import laid_out
from sbpipe.losses import PerExampleLoss
from sbpipe.records import Floats
from sbpipe.scoring.agreement import SLICE, Agreement
from sbpipe.scoring.programs import DTYPES, ByteProgram, FloatProgram, Program

log = logging.getLogger("sbpipe.scoring")

_SAME, _SIMILAR = 1e-3, 0.5
"""Largest difference, relative to the outputs, between a program and the model it was made of: in fp32, and narrower."""


class Scorer:
    """Scores with a replica of the model, in evaluation mode, at the selector's precision; the loss itself is always float32."""

    def __init__(
        self,
        model: nn.Module,
        loss: PerExampleLoss,
        *,
        precision: str,
        device: torch.device,
        scale: float = 1.0,
        compiled: bool = False,
        min_agreement: float = 0.0,
    ) -> None:
        self.model = model.to(device=device, dtype=torch.float32).eval().requires_grad_(False)
        self._loss = loss
        self._scale = scale
        self._is_compiled = compiled
        self._padded_to = 0
        self._has_warned = False
        self._is_whole_pending = self._is_pending = False
        self.agreement = Agreement(min_agreement)
        self.num_outputs = 0
        """Classes that predictions are of, once there are some."""
        self.num_overflowed = 0
        """Scores that were not finite."""
        self.slower: list[str] = []
        """Precisions to step back up to, the next one last."""
        self.use(precision)

    @torch.inference_mode()
    def use(self, precision: str) -> None:
        """Score at this precision from now on."""
        self.precision = precision
        self.agreement.forget()
        self._program = self._make(precision)
        self._program.refresh(whole=True)
        self._is_pending = self._is_whole_pending = False

    def _make(self, precision: str) -> Program:
        if precision != "int8":
            return FloatProgram(self.model, precision, compiled=self._is_compiled)
        try:
            return ByteProgram(self.model)
        except ValueError as error:
            log.warning("selector.precision = 'int8': the model cannot be quantised: %s. It is scored in fp32", error)
            self.precision = "fp32"
            return FloatProgram(self.model, "fp32", compiled=self._is_compiled)

    @property
    def is_exact(self) -> bool:
        """Whether a score is the loss itself, so that there is nothing to check."""
        return self.precision == "fp32" and self._scale == 1.0

    def weights_arrived(self, whole: bool) -> None:
        """The model was written into: everything, or only normalisation, biases and the head."""
        self._is_pending = True
        self._is_whole_pending = self._is_whole_pending or whole
        if whole:
            self.agreement.weights_arrived()

    @torch.inference_mode()
    def refresh(self) -> bool:
        """Take weights that have arrived, if any did; whether some had."""
        if not self._is_pending:
            return False
        self._program.refresh(whole=self._is_whole_pending)
        self._is_pending = self._is_whole_pending = False
        return True

    @torch.inference_mode()
    def prepare(self, inputs: Tensor, targets: Tensor) -> None:
        """Try it on real candidates, and learn what int8 must know: what cannot work shows now, not at some later step."""
        bad = int((~torch.isfinite(inputs)).flatten(1).any(dim=1).sum()) if inputs.is_floating_point() else 0
        if bad:
            reason = f"{bad} of the first {len(inputs)} candidates hold values that are not finite (NaN or infinite)"
            raise DataError(f"{reason}, and nothing can be learned from their scores. Remove or repair such examples")
        self._refuse_size(inputs[:1])
        self._padded_to = len(inputs)
        some = inputs[:SLICE]
        outputs = self._program.calibrate(laid_out(self._shrunk(some)))
        if outputs is None:
            raise ModelError(
                "selector.precision = 'int8': the first candidates give values that are not finite, so their range cannot be measured. "
                "Check the data and the model, or write fp32"
            )
        if self._is_compiled:
            self._compile(some)
        self._try(some, outputs)
        for note in self._program.notes:
            log.warning("selector.precision = %r: %s", self.precision, note)
        self.score(inputs, targets)

    def _refuse_size(self, inputs: Tensor) -> None:
        if self._scale == 1.0:
            return
        if inputs.ndim != 4:
            shape = list(inputs.shape[1:])
            raise ModelError(
                f"selector.scale = {self._scale:g}: only images can be scored smaller, these are inputs of {shape}. Write 1.0"
            )
        small = self._shrunk(inputs)
        try:
            self.model(laid_out(small))
        except RuntimeError as error:
            size = "x".join(str(side) for side in small.shape[2:])
            reason = f"the model does not take images of {size} ({error})"
            raise ModelError(f"selector.scale = {self._scale:g}: {reason}. Write a larger scale, or 1.0") from error

    def _compile(self, inputs: Tensor) -> None:
        try:
            self._outputs(self._shrunk(inputs))
        except Exception as error:  # the compiler, and the compiler that it calls, fail in ways of their own
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            way_out = "A C++ compiler must be installed; or write selector.compile = false"
            raise DeviceError(f"selector.compile = true: the model cannot be compiled ({reason}). {way_out}") from error

    def _try(self, inputs: Tensor, wanted: Tensor) -> None:
        """A forward pass that was traced wrongly (it may depend on what a trace does not see) is not used."""
        try:
            difference = self._outputs(self._shrunk(inputs)) - wanted.float()
            if bool(difference.norm() <= (_SAME if self.precision == "fp32" else _SIMILAR) * wanted.float().norm()):
                return
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
        found = f"traced for {self.precision}, the model computes something else than it does itself"
        log.warning("%s: it is scored as it is, in fp32, which is slower", found)
        self.precision = "fp32"
        self._program = FloatProgram(self.model, "fp32", folded=False, compiled=self._is_compiled)

    def score(self, inputs: Tensor, targets: Tensor) -> Floats:
        """The loss of each candidate. Scores that overflowed come out as they are: the policy never keeps them."""
        return self.score_and_predict(inputs, targets)[0]

    @torch.inference_mode()
    def score_and_predict(self, inputs: Tensor, targets: Tensor) -> tuple[Floats, NDArray[np.int64] | None]:
        """The loss of each candidate, and the class the model takes it for; None where it is no classifier."""
        self.refresh()
        is_checked = not self.is_exact and self.agreement.is_due(len(inputs))
        exact = self.exact(inputs[:SLICE], targets[:SLICE]) if is_checked else None
        outputs = self._outputs(self._shrunk(inputs))
        losses: Floats = self._loss(outputs, targets).float().cpu().numpy()
        self._count_overflow(losses)
        if is_checked:
            self._note(float("nan") if exact is None else spearman(losses[:SLICE], exact))
        if outputs.ndim != 2 or targets.ndim != 1 or targets.is_floating_point():
            return losses, None
        self.num_outputs = outputs.shape[1]
        return losses, outputs.argmax(dim=1).cpu().numpy()

    def _count_overflow(self, losses: Floats) -> None:
        count = len(losses) - int(np.isfinite(losses).sum())
        if count and not self.num_overflowed:
            found = f"{count} of {len(losses)} scores in {self.precision} are not finite: such candidates are not chosen"
            way_out = "" if self.precision == "fp32" else ". If there are many, set selector.precision = 'fp32'"
            log.warning("%s%s", found, way_out)
        self.num_overflowed += count

    @torch.inference_mode()
    def exact(self, inputs: Tensor, targets: Tensor) -> Floats | None:
        """The losses in single precision at full size, learning the ranges of int8 on the way; None if values were not finite."""
        outputs = self._program.calibrate(laid_out(self._shrunk(inputs)))
        if outputs is None:
            return None
        if self._scale != 1.0:
            outputs = self.model(laid_out(inputs))
        losses: Floats = self._loss(outputs.float(), targets).float().cpu().numpy()
        return losses

    def _outputs(self, inputs: Tensor) -> Tensor:
        inputs = laid_out(inputs, DTYPES.get(self.precision, torch.float32))
        if not self._is_compiled:
            return self._program(inputs).float()
        # A compiled program knows one batch size: any other is padded to it, or it would be compiled anew.
        self._padded_to = max(self._padded_to, len(inputs))
        missing = self._padded_to - len(inputs)
        padded = inputs if not missing else torch.cat([inputs, inputs[:1].expand(missing, *inputs.shape[1:])])
        return self._program(laid_out(padded))[: len(inputs)].float()

    def _shrunk(self, inputs: Tensor) -> Tensor:
        """Images at `scale` of their height and width, each pixel the mean of those it stands for."""
        if self._scale == 1.0 or inputs.ndim != 4:
            return inputs
        size = [max(1, round(side * self._scale)) for side in inputs.shape[2:]]
        return nn.functional.interpolate(inputs, size=size, mode="area")

    def _note(self, correlation: float) -> None:
        self.agreement.note(correlation)
        if not self.agreement.is_low:
            return
        found = f"scores in {self.precision} rank like fp32 only to {self.agreement.recent:.3f}"
        if self.slower:
            self.use(self.slower.pop())
            log.warning("%s: scoring in %s from now on", found, self.precision)
        elif not self._has_warned:
            self._has_warned = True
            log.warning("%s: choose another selector.precision, or a selector.scale nearer to 1", found)
