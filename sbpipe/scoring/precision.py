"""The names of precisions, and which of them a device can score in. It must not know models."""

import torch

from sbpipe.errors import DeviceError
from sbpipe.machine.layout import DTYPES
from sbpipe.scoring import int8, products

PRECISIONS = (*DTYPES, "int8")


def why_not(precision: str, device: torch.device) -> str | None:
    """Why a device cannot score in a precision; None if it can, given a suitable model."""
    if precision == "int8":
        if device.type != "cpu":
            return products.why_not(device)
        if not int8.is_available():
            return (
                "this build of PyTorch has no integer kernels for this CPU (they come with oneDNN, on x86 "
                "with AVX2 or later)"
            )
        return None
    try:
        torch.zeros(1, dtype=DTYPES[precision], device=device).add_(1)
    except (RuntimeError, TypeError, NotImplementedError) as error:
        return f"{device} does not compute in it ({error})"
    return None


def refuse(precision: str, device: torch.device) -> None:
    """Raise if the device cannot score in a precision, before anything is loaded."""
    reason = None if precision == "auto" else why_not(precision, device)
    if reason is not None:
        instead = "fp16" if device.type != "cpu" else "fp32"
        raise DeviceError(
            f"selector.precision = {precision!r}: {reason}. Write {instead}, or auto for the fastest that "
            "ranks alike"
        )


def supported(device: torch.device) -> list[str]:
    """The precisions a device can score in, fp32 first."""
    return [name for name in PRECISIONS if why_not(name, device) is None]
