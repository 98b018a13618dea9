"""Whether a program computes what its model does, and which scores say nothing. Pure; knows no scorer."""

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
"""Largest relative difference between a program's outputs and the model's: in fp32, and narrower."""


def is_near(program: Callable[[Tensor], Tensor], inputs: Tensor, wanted: Tensor, tolerance: float) -> bool:
    """Whether a program's outputs differ from these by so much at the most; False if it gives none."""
    try:
        difference = program(inputs).float() - wanted
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        log.warning("the model's graph cannot be computed: %s", str(error).strip().splitlines()[0])
        return False
    # Outputs that are not finite compare with nothing; scores made of them are counted as they come.
    return bool(difference.norm() <= tolerance * wanted.norm()) or not bool(torch.isfinite(wanted).all())


def finite_rows(inputs: Tensor) -> Tensor:
    """Which examples hold nothing that is not finite; a sum tells, in one reading of them."""
    if not inputs.is_floating_point():
        return torch.ones(len(inputs), dtype=torch.bool, device=inputs.device)
    # In float32: a sum of finite half-precision numbers could overflow.
    return torch.isfinite(inputs.flatten(1).float().sum(dim=1))


def rows_to_learn_from(inputs: Tensor) -> Tensor:
    """The candidates whose inputs are finite. On an accelerator, whose host would have to wait to know how
    many they are, the first of them stands in for each of the others.
    """
    finite = finite_rows(inputs)
    if inputs.device.type == "cpu":
        return finite
    places = torch.arange(len(inputs), device=inputs.device)
    return torch.where(finite, places, finite.int().argmax())


def believable(losses: Floats, *, is_sound: bool, finite: NDArray[np.bool_] | None = None) -> Floats:
    """NaN for the losses that say nothing: all of them unless the weights were sound, and those of candidates
    whose inputs were not finite.
    """
    # With weights that are not finite no score can be believed, whatever a saturating layer made of it.
    if not is_sound:
        return np.full_like(losses, np.nan)
    # Found beforehand, because neither a fused ReLU nor a byte lets NaN through to the loss.
    if finite is not None and not finite.all():
        return np.where(finite, losses, np.float32(np.nan))
    return losses
