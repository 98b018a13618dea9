"""Devices by name: which exist, what `auto` means, errors that say what to do. Knows no model, no data."""

import contextlib
import os
from collections.abc import Iterator

import torch

from sbpipe.errors import DeviceError


def accelerators() -> list[torch.device]:
    """The accelerators of this machine, in order."""
    kind = torch.accelerator.current_accelerator(check_available=True)
    return (
        [torch.device(kind.type, index) for index in range(torch.accelerator.device_count())] if kind else []
    )


def plan(trainer: str = "auto", selector: str = "auto", num_ranks: int = 1) -> tuple[str, str]:
    """The devices of trainer and selector here: two accelerators, one and the CPU, or the CPU for both.

    With several selectors, whose devices are all named, it returns the first one's. Several ranks have an
    accelerator each, beginning with the trainer's.
    """
    found = [str(device) for device in accelerators()]
    trainer, *taken = (_with_index(name.strip(), found) for name in (trainer, *selector.split(",")))
    if trainer == "auto":
        trainer = next((name for name in found if name not in taken), "cpu")
    selector = taken[0]
    if selector == "auto":
        first = found.index(trainer) if trainer in found else 0
        ranks = found[first : first + num_ranks] if trainer in found else []
        selector = next((name for name in found if name not in ranks), "cpu")
    return trainer, selector


def _with_index(name: str, found: list[str]) -> str:
    """A kind alone means its first device: `cuda` and `cuda:0` must count as the same."""
    return first if (first := f"{name}:0") in found else name


def of_rank(trainer: str, local_rank: int) -> str:
    """The device of one rank of this host: an accelerator each, beginning with the named one, or the CPU."""
    found = [str(device) for device in accelerators()]
    if trainer == "cpu" or (trainer == "auto" and not found):
        return "cpu"
    place = local_rank + (0 if trainer == "auto" else resolve("train.device", trainer).index)
    if place >= len(found):
        raise DeviceError(
            f"train.ranks: rank {local_rank} of this host has no accelerator, it has {len(found)}. Start "
            "fewer ranks, or set train.device = 'cpu'"
        )
    return found[place]


def resolve(key: str, name: str) -> torch.device:
    """The device that a config key names; DeviceError with a list of devices if there is none."""
    there = ["cpu", *map(str, accelerators())]
    try:
        device = torch.device(name)
    except RuntimeError:
        raise DeviceError(
            f"{key} = {name!r}: not a device name. This machine has {', '.join(there)}"
        ) from None
    if device.type != "cpu" and device.index is None:
        device = torch.device(device.type, 0)
    if str(torch.device(device.type) if device.type == "cpu" else device) not in there:
        raise DeviceError(
            f"{key} = {name!r}: no such device here. This machine has {', '.join(there)}{_mig_note(there)}"
        )
    return torch.device("cpu") if device.type == "cpu" else device


def _mig_note(there: list[str]) -> str:
    """A way out for a GPU that is split into MIG instances, of which a process sees only one."""
    cuda = [name for name in there if name.startswith("cuda")]
    is_cut = "MIG-" in os.environ.get("CUDA_VISIBLE_DEVICES", "") or any(
        " MIG " in torch.cuda.get_device_name(name) for name in cuda
    )
    if not is_cut:
        return ""
    return (
        ". CUDA shows a process one MIG instance: start `sbpipe trainer` and `sbpipe selector` by "
        "themselves, each with the CUDA_VISIBLE_DEVICES of its own instance, and name cuda:0 for both"
    )


def describe(device: torch.device) -> str:
    """A device's name for people."""
    if device.type == "cpu":
        return f"cpu ({torch.get_num_threads()} threads)"
    if device.type == "cuda":
        return f"{device} ({torch.cuda.get_device_name(device)})"
    return str(device)


def make_current(device: torch.device) -> None:
    """Make the device current in this thread. Every thread begins on the first accelerator, where pinned
    memory or a stream would create a context.
    """
    if device.type != "cpu":
        torch.accelerator.set_device_index(device.index or 0)


@contextlib.contextmanager
def current(device: torch.device) -> Iterator[None]:
    """Make the device current inside this context, in a thread that is not ours."""
    if device.type in ("cpu", "meta"):
        yield
    else:
        with torch.accelerator.device_index(device.index or 0):
            yield


def use(device: torch.device) -> None:
    """Make the device current, and limit this process's CPU work to its number of threads."""
    make_current(device)
    threads = os.environ.get("OMP_NUM_THREADS", "")
    if threads.isdecimal() and int(threads):
        torch.set_num_threads(int(threads))


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that a device has too little memory."""
    # The CPU's allocator and some drivers raise a plain RuntimeError, which only its text identifies.
    return (
        isinstance(error, torch.OutOfMemoryError)
        or (isinstance(error, RuntimeError) and "out of memory" in str(error).lower())
        or (isinstance(error, RuntimeError) and "can't allocate memory" in str(error))
    )
