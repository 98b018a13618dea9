"""How exactly a device computes: float32 in full where two results are compared, and bits that repeat.

An accelerator may round float32 products to 10 bits (TF32), take another algorithm from run to run, and add
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
    """What torch calls the precision of float32 products on a kind of device, operator by operator."""
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
    # Before this generation there is no such unit, whatever is allowed; convolutions allow it by default.
    return device.type != "cuda" or torch.cuda.get_device_capability(device) >= (8, 0)


@contextlib.contextmanager
def full_float32(device: torch.device) -> Iterator[None]:
    """Round no products of float32 numbers meanwhile: what is compared must differ by more than rounding."""
    with _rounded_to("ieee", device) if rounds_float32(device) else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def rounded_float32(device: torch.device) -> Iterator[None]:
    """Round products of float32 numbers to TF32 meanwhile, where the device has a unit for it."""
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
        # First in the older of torch's two ways to say it: after the newer one alone, reading the older one,
        # as compiled code does, raises an error.
        torch.backends.cuda.matmul.allow_tf32 = wanted[0] in _ROUNDED
        torch.backends.cudnn.allow_tf32 = wanted[1] in _ROUNDED
    for knob, precision in zip(_knobs(kind), wanted, strict=True):
        is_same = knob.fp32_precision == precision or {knob.fp32_precision, precision} == {"ieee", "none"}
        if not is_same:
            knob.fp32_precision = precision


def make_repeatable(device: torch.device) -> str:
    """Let this process compute the same bits in every run on this device; what was set, for a user to read.

    "" on the CPU, which does so by itself. An operator without such an algorithm warns and goes on: a run
    that stops there would help nobody. TF32 stays as it is: it rounds more, but always alike.
    """
    if device.type == "cpu":
        return ""
    if device.type == "cuda":
        # Read when the first matrix product makes its workspace: in time here, before any model.
        os.environ.setdefault(_CUBLAS, ":4096:8")
        torch.backends.cudnn.benchmark = False
        torch.backends.cudnn.deterministic = True
    torch.use_deterministic_algorithms(True, warn_only=True)
    # It would fill all memory that is asked for, against programs that read what nobody wrote.
    deterministic: Any = torch.utils.deterministic
    deterministic.fill_uninitialized_memory = False
    return (
        f"a logical clock on {device}: only deterministic algorithms, so that runs repeat bit for bit, which "
        "may cost a little speed; torch warns of an operator that has none"
    )
