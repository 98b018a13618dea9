"""Whether a program computes what its model does, and which scores are meaningless. Pure; knows no scorer."""

import logging
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sbpipe.machine.devices import is_out_of_memory
from sbpipe.records import Floats

log = logging.getLogger("sbpipe.scoring")

SAME, SIMILAR = 1e-3, 0.5
"""Largest relative difference between a program's outputs and the model's: in fp32, and in lower
precisions.
"""


def is_near(program: Callable[[Tensor], Tensor], inputs: Tensor, wanted: Tensor, tolerance: float) -> bool:
    """Whether a program's outputs differ from `wanted` by at most `tolerance`; False if it fails."""
    try:
        difference = program(inputs).float() - wanted
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        log.warning("the model's graph cannot be computed: %s", str(error).strip().splitlines()[0])
        return False
    # Outputs that are not finite cannot be compared; scores from them are counted later.
    return bool(difference.norm() <= tolerance * wanted.norm()) or not bool(torch.isfinite(wanted).all())


def finite_rows(inputs: Tensor) -> Tensor:
    """Which examples have only finite values, by the sum of each, in one pass over memory."""
    if not inputs.is_floating_point():
        return torch.ones(len(inputs), dtype=torch.bool, device=inputs.device)
    # In float32: a sum of finite half-precision numbers could overflow.
    return torch.isfinite(inputs.flatten(1).float().sum(dim=1))


def rows_to_learn_from(inputs: Tensor) -> Tensor:
    """The candidates whose inputs are finite. On an accelerator the host would have to wait for their number,
    so there the first finite one replaces each of the others.
    """
    finite = finite_rows(inputs)
    if inputs.device.type == "cpu":
        return finite
    places = torch.arange(len(inputs), device=inputs.device)
    return torch.where(finite, places, finite.int().argmax())


def believable(losses: Floats, *, is_sound: bool, finite: NDArray[np.bool_] | None = None) -> Floats:
    """The losses with NaN for meaningless ones: all if the weights were not finite, and those of candidates
    whose inputs were not.
    """
    # With weights that are not finite no score is valid, even if a saturating layer made it finite.
    if not is_sound:
        return np.full_like(losses, np.nan)
    # Found from the inputs, because a fused ReLU or a byte does not propagate NaN to the loss.
    if finite is not None and not finite.all():
        return np.where(finite, losses, np.float32(np.nan))
    return losses
