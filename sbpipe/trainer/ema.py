"""The exponential moving average of a model's weights (`train.ema`). Knows no step but its number."""

import copy

import torch
from torch import nn

from sbpipe.machine.grouped import copy_grouped
from sbpipe.weights.manifest import ties_of


class Ema:
    """A second model that follows the first: average = decay * average + (1 - decay) * new, number by number.

    Buffers are averaged with the parameters, so that running statistics fit the averaged weights;
    integers are copied.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model = copy.deepcopy(model).requires_grad_(False).eval()
        self._decay = decay

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        """Take in the weights after `step` steps."""
        # At first about the mean over the steps so far, so that the initial weights do not linger.
        decay = min(self._decay, (1 + step) / (10 + step))
        # A tensor with two names is averaged once: twice would change the decay.
        averaged, ties = self.model.state_dict(), ties_of(self.model)
        news = model.state_dict()
        pairs = [(averaged[name], news[name]) for name in averaged if name not in ties]
        averages = [average for average, _ in pairs if average.is_floating_point()]
        torch._foreach_lerp_(averages, [new for _, new in pairs if new.is_floating_point()], 1.0 - decay)
        whole = [(average, new) for average, new in pairs if not average.is_floating_point()]
        copy_grouped([average for average, _ in whole], [new for _, new in whole])
