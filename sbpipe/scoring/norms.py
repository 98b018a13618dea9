"""Which statistics BatchNorm layers score with: the stored ones, or those of candidates.

If evaluation mode is blind (`blindness.py`), statistics are estimated on the first candidates after new
weights, and replace the stored ones in the selector's copy, which the next snapshot overwrites. All else
(folding, casting, quantising) is unchanged. Scores of torchvision's mobilenet_v3_small had a rank correlation
of -0.2 with fresh losses, and of 0.9 with statistics of 64 candidates. It must not know programs, leases or
the trainer.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from sbpipe.records import Floats
from sbpipe.scoring.blindness import FEWEST, Blindness, Check

Forward = Callable[[Tensor], Tensor]


class Statistics:
    """Decides which statistics a model is scored with, and estimates them."""

    def __init__(self, model: nn.Module, choice: str) -> None:
        """`choice` is `selector.statistics`."""
        self._model = model
        self._norms = batch_norms(model)
        self._choice = choice
        self._blindness = Blindness()
        self.mark, self.go_back = self._blindness.mark, self._blindness.go_back
        self._estimate: list[Tensor] = []
        self.num_estimated = 0
        """Candidates scored with estimated statistics."""

    @property
    def are_estimated(self) -> bool:
        """Whether statistics of candidates are used."""
        is_wanted = self._blindness.is_blind if self._choice == "auto" else self._choice == "candidates"
        return bool(self._norms) and is_wanted

    def weights_arrived(self) -> None:
        """Note that the model was overwritten, statistics included."""
        self._blindness.weights_arrived()

    def is_due(self, num_candidates: int) -> bool:
        """Whether some of the candidates about to be scored must be scored both ways."""
        return bool(self._norms) and self._choice == "auto" and self._blindness.is_due(num_candidates)

    def of_batch(self, inputs: Tensor) -> Tensor:
        """The outputs with the statistics of these inputs; the stored ones are unchanged."""
        with batch_statistics(self._norms, kept=False):
            outputs: Tensor = self._model(inputs)
        return outputs

    def estimate(self, inputs: Tensor) -> Tensor | None:
        """Store the statistics of these inputs and return the outputs. If too few, store the last estimate;
        None.
        """
        if len(inputs) < FEWEST:
            _restore(_statistics(self._norms)[: len(self._estimate)], self._estimate)
            return None
        with batch_statistics(self._norms, kept=True):
            outputs: Tensor = self._model(inputs)
        self._estimate = [tensor.clone() for tensor in _statistics(self._norms)]
        return outputs

    def note(self, evaluated: Floats, batch: Floats) -> str:
        """Take in the losses of some candidates both ways; returns a message on what changes, or ""."""
        was_blind = self._blindness.is_blind
        check = self._blindness.note(evaluated, batch)
        if check is None or self._blindness.is_blind == was_blind:
            return ""
        if was_blind:
            return "evaluation mode sees again: candidates are scored with the stored statistics"
        mean = self.checked or check
        return (
            f"the model is blind in evaluation mode: its mean loss there is {mean.evaluation_loss:.2f}, with "
            f"batch statistics {mean.batch_loss:.2f}, and their ranks agree to {mean.agreement:.2f}. From "
            "now on the statistics of its BatchNorm layers are estimated on candidates"
        )

    @property
    def num_checks(self) -> int:
        """How often candidates were scored both ways."""
        return self._blindness.num_checks

    @property
    def checked(self) -> Check | None:
        """The means of the last checks; None before the first."""
        return self._blindness.mean


def batch_norms(model: nn.Module) -> list[_BatchNorm]:
    """The layers that normalise with stored statistics in evaluation mode."""
    return [
        module
        for module in model.modules()
        if isinstance(module, _BatchNorm) and module.running_mean is not None
    ]


@contextmanager
def batch_statistics(norms: Sequence[_BatchNorm], *, kept: bool) -> Iterator[None]:
    """A block in which batch statistics are used; `kept`: they are stored afterwards.

    Of several batches the mean of their statistics is stored. All other layers stay in evaluation mode.
    """
    stored = [] if kept else [tensor.clone() for tensor in _statistics(norms)]
    counts = [norm.num_batches_tracked.clone() for norm in norms if norm.num_batches_tracked is not None]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        # Without a momentum torch averages over the counted batches.
        norm.training, norm.momentum = True, None
        if norm.num_batches_tracked is not None:
            norm.num_batches_tracked.zero_()
    try:
        yield
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.training, norm.momentum = False, momentum
        _restore([norm.num_batches_tracked for norm in norms if norm.num_batches_tracked is not None], counts)
        if not kept:
            _restore(_statistics(norms), stored)


def _statistics(norms: Sequence[_BatchNorm]) -> list[Tensor]:
    return [
        tensor for norm in norms for tensor in (norm.running_mean, norm.running_var) if tensor is not None
    ]


def _restore(tensors: list[Tensor], values: list[Tensor]) -> None:
    if tensors:
        torch._foreach_copy_(tensors, values)
