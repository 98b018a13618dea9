"""Makes the program that scores a model at a precision, or at fp32 where the model does not allow that
precision. It must not know losses or scorers.
"""

import logging

import torch
from torch import nn

from sbpipe.errors import DeviceError
from sbpipe.machine.devices import is_out_of_memory
from sbpipe.scoring.dynamic import DynamicProgram
from sbpipe.scoring.programs import ByteProgram, FloatProgram, Program

log = logging.getLogger("sbpipe.scoring")


def program_for(
    model: nn.Module, precision: str, device: torch.device, *, folded: bool, compiled: bool | str
) -> tuple[str, Program]:
    """The program, and the precision it scores in: this one if the model allows it.

    `folded` is False where the traced model computes something else than the model.
    """
    try:
        if precision == "int8":
            if not folded:
                raise ValueError("what is traced of its forward pass computes something else")
            return precision, _in_bytes(model, device)
        return precision, FloatProgram(model, precision, folded=folded, compiled=compiled)
    # A user's model may raise any error when traced, copied or quantised.
    except Exception as error:
        if precision == "fp32" or isinstance(error, DeviceError) or is_out_of_memory(error):
            raise
        kind = "quantised" if precision == "int8" else f"cast to {precision}"
        log.warning(
            "selector.precision = %r: the model cannot be %s: %s. It is scored in fp32",
            precision,
            kind,
            error,
        )
        return "fp32", FloatProgram(model, "fp32", folded=folded, compiled=compiled)


def _in_bytes(model: nn.Module, device: torch.device) -> Program:
    """The model in integers as far as the device supports them; a DeviceError where it does not."""
    if device.type == "cpu":
        return ByteProgram(model)
    try:
        return DynamicProgram(model)
    except ValueError as error:
        raise DeviceError(
            f"selector.precision = 'int8': {error}. Write fp16, or auto for the fastest that ranks alike"
        ) from None
