"""A backward pass over some rows of a larger forward pass, for the bench that asks whether it pays. It must
not know times.

Autograd holds every gradient to the shape that the forward pass had, so the graph of all candidates cannot be
walked with the kept rows alone. Walked instead is the graph of a train batch, recorded once and never freed,
that holds numbers where its saved tensors were: each stands for the kept rows of the tensor that the
candidates' pass saved at the same place. So the model must do the same operations in every pass.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

Losses = Callable[[Tensor, Tensor], Tensor]
"""From inputs and targets to the loss of each example."""


class KeptRows:
    """Forward over all candidates, backward over as many of them as `inputs` and `targets` have rows."""

    def __init__(self, losses: Losses, inputs: Tensor, targets: Tensor) -> None:
        self._losses = losses
        self._saved: list[Tensor] = []
        self._rows = torch.empty(0, dtype=torch.int64)
        self._kept: dict[tuple[int, torch.Size], Tensor] = {}
        shapes: list[torch.Size] = []

        def number(saved: Tensor) -> int:
            shapes.append(saved.shape)
            return len(shapes) - 1

        with saved_tensors_hooks(number, self._unpack):
            self._mean = losses(inputs, targets).mean()
        self._shapes = shapes

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The losses of all candidates; what their backward pass would need is held until it has been."""
        self._saved = []
        with saved_tensors_hooks(self._hold, self._saved.__getitem__):
            losses = self._losses(inputs, targets)
        assert len(self._saved) == len(self._shapes), "the model did other operations than before"
        return losses.detach()

    def backward(self, rows: Tensor) -> None:
        """Add the gradient of the mean loss of these rows to the parameters."""
        self._rows = rows
        torch.autograd.backward(self._mean, retain_graph=True)
        self._saved, self._kept = [], {}

    def _hold(self, saved: Tensor) -> int:
        self._saved.append(saved.detach())
        return len(self._saved) - 1

    def _unpack(self, place: int) -> Tensor:
        saved = self._saved[place]
        if saved.shape == self._shapes[place]:
            return saved
        # What one operation gives and the next one takes is saved by both.
        which = (saved.data_ptr(), saved.shape)
        if which not in self._kept:
            self._kept[which] = _gathered(saved, self._rows)
        return self._kept[which]


def _gathered(values: Tensor, rows: Tensor) -> Tensor:
    """The rows as they lie in memory: images stay channels-last, which the kernels are fastest with."""
    if values.ndim != 4:
        return values.index_select(0, rows)
    return values.permute(0, 2, 3, 1).index_select(0, rows).permute(0, 3, 1, 2)


def saved_bytes(losses: Losses, inputs: Tensor, targets: Tensor) -> int:
    """How much a forward pass keeps for its backward pass, parameters left out."""
    sizes: dict[int, int] = {}

    def note(saved: Tensor) -> Tensor:
        if not isinstance(saved, torch.nn.Parameter):
            sizes[saved.data_ptr()] = saved.numel() * saved.element_size()
        return saved.detach()

    with saved_tensors_hooks(note, lambda saved: saved):
        losses(inputs, targets)
    return sum(sizes.values())
