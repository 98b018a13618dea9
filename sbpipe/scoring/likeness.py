"""Whether a program computes what its model does, and which candidates no score of it says anything about."""

import logging
from collections.abc import Callable

import torch
from torch import Tensor

from sbpipe.machine.devices import is_out_of_memory

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
