"""`torch.sim`: what torch and programs ask of the module of a device kind."""

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any

import torch

lib: Any = None
"""The compiled devices, once they are loaded."""

Stream, Event = torch.Stream, torch.Event
_NUM_DEVICES = 2


class DeviceProperties:
    """What a program may want to know of a device."""

    def __init__(self, index: int) -> None:
        self.name = f"simulated accelerator {index}"
        self.total_memory = mem_get_info(index)[1]


def _index(device: Any = None) -> int:
    if device is None:
        return current_device()
    if isinstance(device, int):
        return device
    index = torch.device(device).index
    return current_device() if index is None else index


def is_available() -> bool:
    return True


def is_initialized() -> bool:
    return True


def _is_in_bad_fork() -> bool:
    return bool(lib.sim_is_forked())


def device_count() -> int:
    return _NUM_DEVICES


def current_device() -> int:
    return torch._C._accelerator_getDeviceIndex()


def _sleep(cycles: int) -> None:
    """Do nothing for so many cycles, of half a nanosecond each, before what is queued next."""
    lib.sim_sleep(current_device(), cycles // 2)


def set_device(device: Any) -> None:
    torch._C._accelerator_setDeviceIndex(_index(device))


@contextlib.contextmanager
def device(device: Any) -> Iterator[None]:
    before = current_device()
    set_device(device)
    try:
        yield
    finally:
        set_device(before)


def current_stream(device: Any = None) -> torch.Stream:
    return torch._C._accelerator_getStream(_index(device))


def synchronize(device: Any = None) -> None:
    torch._C._accelerator_synchronizeDevice(_index(device))


def get_device_name(device: Any = None) -> str:
    return f"simulated accelerator {_index(device)}"


def get_device_properties(device: Any = None) -> DeviceProperties:
    return DeviceProperties(_index(device))


def get_amp_supported_dtype() -> list[torch.dtype]:
    return [torch.float16, torch.bfloat16]


def is_bf16_supported() -> bool:
    return True


def mem_get_info(device: Any = None) -> tuple[int, int]:
    return torch._C._accelerator_getMemoryInfo(_index(device))


def memory_allocated(device: Any = None) -> int:
    return torch.accelerator.memory_allocated(_index(device))


def max_memory_allocated(device: Any = None) -> int:
    return torch.accelerator.max_memory_allocated(_index(device))


def memory_reserved(device: Any = None) -> int:
    return torch.accelerator.memory_reserved(_index(device))


def reset_peak_memory_stats(device: Any = None) -> None:
    torch.accelerator.reset_peak_memory_stats(_index(device))


def empty_cache() -> None:
    torch.accelerator.empty_cache()


def manual_seed(seed: int) -> None:
    lib.sim_seed(current_device(), seed & (2**64 - 1))


def manual_seed_all(seed: int) -> None:
    for index in range(_NUM_DEVICES):
        lib.sim_seed(index, seed & (2**64 - 1))


def initial_seed() -> int:
    return int(lib.sim_initial_seed(current_device()))


def get_rng_state(device: Any = None) -> torch.Tensor:
    state = torch.empty(lib.sim_rng_size(), dtype=torch.uint8)
    lib.sim_get_rng(_index(device), ctypes.c_void_p(state.data_ptr()))
    return state


def set_rng_state(new_state: torch.Tensor, device: Any = None) -> None:
    state = new_state.contiguous()
    lib.sim_set_rng(_index(device), ctypes.c_void_p(state.data_ptr()))
