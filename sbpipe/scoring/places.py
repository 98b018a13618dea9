"""Where a classifier ranks the label of each example. Knows neither the loss nor the caller."""

import torch
from torch import Tensor


def places_of(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The number of classes with a larger output than the label, from 0 (it is predicted) to classes - 1; and
    whether all are valid, which they are not where a target is not the index of an output.

    For outputs [N, classes] and integer targets [N]; nothing here waits for a device.
    """
    labels = targets.long()
    known = labels.clamp(0, outputs.shape[1] - 1)
    places = torch.sum(outputs > outputs.gather(1, known[:, None]), dim=1)
    return places, (known == labels).all()
