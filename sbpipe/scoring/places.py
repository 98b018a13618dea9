"""Where a classifier ranks the label of each example. Knows neither the loss nor who asks."""

import torch
from torch import Tensor


def places_of(outputs: Tensor, targets: Tensor) -> Tensor | None:
    """How many classes have a larger output than the label, from 0 (it is predicted) to the classes less one.

    For outputs [N, classes] and whole targets [N]; None where a target is no number of an output.
    """
    labels = targets.long()
    if bool(((labels < 0) | (labels >= outputs.shape[1])).any()):
        return None
    return torch.sum(outputs > outputs.gather(1, labels[:, None]), dim=1)
