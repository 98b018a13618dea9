"""Where a classifier ranks the label of each example. Knows neither the loss nor who asks."""

import torch
from torch import Tensor


def places_of(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """How many classes have a larger output than the label, from 0 (it is predicted) to the classes less one;
    and whether all of it is so, which it is not where a target is no number of an output.

    For outputs [N, classes] and whole targets [N]; nothing here waits for a device.
    """
    labels = targets.long()
    known = labels.clamp(0, outputs.shape[1] - 1)
    places = torch.sum(outputs > outputs.gather(1, known[:, None]), dim=1)
    return places, (known == labels).all()
