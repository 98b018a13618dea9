"""How exactly a device computes: full float32 where results are compared, and runs that repeat bit for bit.

An accelerator may round float32 products to 10 bits (TF32), choose other algorithms from run to run, and sum
in another order. It must not know models, clocks or settings.
"""

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import torch

_ROUNDED = ("tf32", "bf16")
_CUBLAS = "CUBLAS_WORKSPACE_CONFIG"


def _knobs(kind: str) -> list[Any]:
    """Torch's settings for the precision of float32 products on a kind of device, one per operator."""
    backends: Any = torch.backends
    if kind == "cuda":
        return [backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn]
    if kind in ("cpu", "xpu"):
        return [backends.mkldnn.matmul, backends.mkldnn.conv, backends.mkldnn.rnn]
    return []


def rounds_float32(device: torch.device) -> bool:
    """Whether products of float32 numbers are rounded here to fewer bits than float32 has."""
    if not any(knob.fp32_precision in _ROUNDED for knob in _knobs(device.type)):
        return False
    # Convolutions allow it by default, but older generations have no unit for it.
    return device.type != "cuda" or torch.cuda.get_device_capability(device) >= (8, 0)


@contextlib.contextmanager
def full_float32(device: torch.device) -> Iterator[None]:
    """Do not round float32 products inside this context: compared results must not differ by rounding."""
    with _rounded_to("ieee", device) if rounds_float32(device) else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def rounded_float32(device: torch.device) -> Iterator[None]:
    """Round float32 products to TF32 inside this context, if the device has a unit for it."""
    with _rounded_to("tf32", device):
        yield


@contextlib.contextmanager
def _rounded_to(precision: str, device: torch.device) -> Iterator[None]:
    before = [knob.fp32_precision for knob in _knobs(device.type)]
    _set_precisions(device.type, [precision] * len(before))
    try:
        yield
    finally:
        _set_precisions(device.type, before)


def _set_precisions(kind: str, wanted: list[str]) -> None:
    if kind == "cuda":
        # Set torch's older switches first: with only the newer ones set, reading the older ones, as compiled
        # code does, raises an error.
        torch.backends.cuda.matmul.allow_tf32 = wanted[0] in _ROUNDED
        torch.backends.cudnn.allow_tf32 = wanted[1] in _ROUNDED
    for knob, precision in zip(_knobs(kind), wanted, strict=True):
        is_same = knob.fp32_precision == precision or {knob.fp32_precision, precision} == {"ieee", "none"}
        if not is_same:
            knob.fp32_precision = precision


def make_repeatable(device: torch.device) -> str:
    """Make this process compute the same bits in every run on this device; returns a note for the user.

    The note is "" on the CPU, which does so by itself. An operator without a deterministic algorithm warns
    and goes on, which is better than stopping the run. TF32 is left alone: it rounds more, but repeatably.
    """
    if device.type == "cpu":
        return ""
    if device.type == "cuda":
        # It is read when the first matrix product makes its workspace, so it must be set before any model.
        os.environ.setdefault(_CUBLAS, ":4096:8")
        torch.backends.cudnn.benchmark = False
        torch.backends.cudnn.deterministic = True
    torch.use_deterministic_algorithms(True, warn_only=True)
    # It would fill all new memory, to help programs that read uninitialised memory.
    deterministic: Any = torch.utils.deterministic
    deterministic.fill_uninitialized_memory = False
    return (
        f"a logical clock on {device}: only deterministic algorithms, so that runs repeat bit for bit, which "
        "may cost a little speed; torch warns of an operator that has none"
    )
