"""A model's forward pass at some precision, from weights that are overwritten in place. Knows no loss.

A program is made once, from a model on its device in single precision. After new weights were written into
the model, `refresh` derives the program's own weights: folded, cast, or quantised and packed. Nothing is
traced again.
"""

import copy
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _NormBase

from sbpipe.machine.grouped import copy_grouped
from sbpipe.machine.layout import DTYPES, layout_of
from sbpipe.scoring.captured import fast
from sbpipe.scoring.fused import FusedConv
from sbpipe.scoring.graph import fused, traced
from sbpipe.scoring.lowering import lower, record


class Program(Protocol):
    """A forward pass at some precision."""

    notes: list[str]
    """What the user should know about how it was made."""

    def refresh(self) -> bool | Tensor:
        """Take the present weights; returns whether all are finite, on an accelerator as a tensor."""
        ...

    def calibrate(self, inputs: Tensor) -> Tensor | None:
        """The outputs in fp32; also updates the ranges of values. None if some were not finite."""
        ...

    def __call__(self, inputs: Tensor) -> Tensor:
        """The outputs."""
        ...


class FloatProgram:
    """The model in floating point, with steps folded that are redundant in evaluation mode.

    In single precision the rest of the model is used unchanged. In half precision the rest is cast when
    weights arrive, except normalisation layers, whose statistics would overflow.
    """

    def __init__(
        self, model: nn.Module, precision: str, *, folded: bool = True, compiled: bool | str = False
    ) -> None:
        self._model = model
        self._watched = Watched(model)
        dtype = DTYPES[precision]
        graph = traced(model) if folded else None
        self.notes: list[str] = []
        run: nn.Module = model if graph is None else graph
        if dtype != torch.float32:
            # A copy: casting works in place, and new weights are written into the model in single precision.
            run = _cast(copy.deepcopy(run), dtype)
            if next(iter(model.parameters()), torch.empty(0)).device.type != "cpu":
                # For convolutions that are not fused: half precision is fast only in this layout.
                run = run.to(memory_format=layout_of(model))
        self._fused: list[FusedConv] = []
        if isinstance(run, fx.GraphModule):
            # From the model and not from the copy: folded in single precision, and rounded only once.
            self._fused = fused(run, model, dtype, keeps_sign=bool(compiled) or self._watched.is_far)
        self._copies = [] if dtype == torch.float32 else _shared_state(run, model)
        self._run: Callable[[Tensor], Tensor] = fast(run, compiled)

    def refresh(self) -> bool | Tensor:
        """Fold and cast all, since new norm statistics change every weight they are folded into."""
        for step in self._fused:
            step.refresh()
        copy_grouped([copied for copied, _ in self._copies], [source for _, source in self._copies])
        return self._watched.is_finite()

    def calibrate(self, inputs: Tensor) -> Tensor | None:
        """There is nothing to learn."""
        outputs: Tensor = self._model(inputs)
        return outputs

    def __call__(self, inputs: Tensor) -> Tensor:
        """The outputs."""
        return self._run(inputs)


class ByteProgram:
    """The model in 8-bit integers wherever possible; raises ValueError if nowhere."""

    def __init__(self, model: nn.Module) -> None:
        # Two graphs: fusing rewrites one, and ranges are recorded on the other, as traced.
        plain, graph = traced(model), traced(model)
        if plain is None or graph is None:
            raise ValueError("its forward pass cannot be traced")
        self._plain = plain
        self._watched = Watched(model)
        steps = fused(graph, model, torch.float32)
        lowered = lower(graph)
        if not lowered.layers:
            raise ValueError("it has no convolution (Conv2d) and no large linear layer but its head")
        self._run, self._layers, self._spans = lowered.graph, lowered.layers, lowered.spans
        kept = {id(module) for module in lowered.graph.modules()}
        self._wide = [step for step in steps if id(step) in kept]
        wide = lowered.wide
        self._is_blind = True
        self.notes = (
            [f"{', '.join(wide[:4])}{' and more' if len(wide) > 4 else ''} computes in fp32"] if wide else []
        )

    def refresh(self) -> bool | Tensor:
        """Quantise and pack the weights that changed; new norm statistics change only scales and biases."""
        for layer in self._layers:
            layer.refresh()
        for step in self._wide:
            step.refresh()
        return self._watched.is_finite()

    def calibrate(self, inputs: Tensor) -> Tensor | None:
        """Update the range of every value that is held in bytes."""
        outputs = record(self._plain, self._spans, inputs)
        self._is_blind = self._is_blind and outputs is None
        return outputs

    def __call__(self, inputs: Tensor) -> Tensor:
        """The outputs; the first inputs serve for calibration if there was none."""
        if self._is_blind:
            self.calibrate(inputs)
        outputs: Tensor = self._run(inputs)
        return outputs


def _cast(run: nn.Module, dtype: torch.dtype) -> nn.Module:
    run = run.to(dtype)
    for module in run.modules():
        if isinstance(module, _NormBase):
            module.float()
    return run


class Watched:
    """Whether all of a model's numbers are finite; checks only tensors written since the last time."""

    def __init__(self, model: nn.Module) -> None:
        self._tensors = [
            tensor for tensor in (*model.parameters(), *model.buffers()) if tensor.is_floating_point()
        ]
        self._seen = [-1] * len(self._tensors)
        self._bad: set[int] = set()

    @property
    def is_far(self) -> bool:
        """Whether the numbers are on an accelerator."""
        return bool(self._tensors) and self._tensors[0].device.type != "cpu"

    def is_finite(self) -> bool | Tensor:
        """By the sum of each tensor: it is not finite if one of its numbers is not."""
        if self.is_far:
            # All at once, in few kernels, without waiting for the result.
            largest = torch._foreach_norm(self._tensors, torch.inf)
            return torch.isfinite(torch.stack([norm.float() for norm in largest])).all()
        # torch counts the writes into each tensor; a fast part writes only few of them.
        new = [k for k, tensor in enumerate(self._tensors) if tensor._version != self._seen[k]]
        if new:
            sums = torch.stack([self._tensors[k].sum(dtype=torch.float32) for k in new])
            fine = torch.isfinite(sums).tolist()
            self._bad = (self._bad - {*new}) | {
                k for k, is_fine in zip(new, fine, strict=True) if not is_fine
            }
            self._seen = [tensor._version for tensor in self._tensors]
        return not self._bad


def _shared_state(run: nn.Module, model: nn.Module) -> list[tuple[Tensor, Tensor]]:
    """The tensors of a copy that are still used, each with its original."""
    source = {
        **dict(model.named_parameters(remove_duplicate=False)),
        **dict(model.named_buffers(remove_duplicate=False)),
    }
    own = {
        **dict(run.named_parameters(remove_duplicate=False)),
        **dict(run.named_buffers(remove_duplicate=False)),
    }
    return [(tensor, source[name]) for name, tensor in own.items() if name in source]
