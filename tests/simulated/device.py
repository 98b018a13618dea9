"""Loads the simulated devices into this process, sets how they behave and reads what they saw."""

import atexit
import ctypes
import faulthandler
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import torch

from simulated import build, device_module, sites

REPORT = "SIM_REPORT"
"""Environment: a folder where each process leaves what its devices saw, when it ends."""
SLOWNESS, TRACE = "SIM_SLOWNESS", "SIM_TRACE"
"""Environment: the factors of both devices ("1,12"), and whether each kernel's line is kept, for children."""

_COMPUTE, _TO_DEVICE, _TO_HOST = range(3)
_STREAMS = 32

_lib: Any = None
_callback: Any = None


class Wait(NamedTuple):
    """How often the host waited for a device at one line of one thread."""

    where: str
    thread: str
    kind: str
    """event, stream, device, item, copy, or shape (a result whose size depends on values)."""
    device: int
    count: int
    drains: int
    """So many of them waited for the last thing queued: the device had nothing left to do."""
    newer: int
    """So many of them waited for something that was queued after the last marker."""
    blocked_s: float


class Race(NamedTuple):
    """Two pieces of work on the same memory that nothing puts in order."""

    kind: str
    count: int
    first: str
    second: str


def is_available() -> bool:
    """Whether the devices are compiled, or can be."""
    return build.is_possible()


def is_loaded() -> bool:
    """Whether this process has them."""
    return _lib is not None


def load() -> bool:
    """Bring the devices into this process, as torch's only accelerators; whether that could be done."""
    global _lib, _callback
    if _lib is not None:
        return True
    path = build.library()
    if path is None:
        return False
    if not faulthandler.is_enabled():
        faulthandler.enable()  # says where in Python the host touched a device's memory
    _lib = _declared(ctypes.CDLL(str(path)))
    _lib.sim_register()
    _callback = ctypes.CFUNCTYPE(ctypes.c_uint32)(sites.number)
    _lib.sim_start(_callback)
    device_module.lib = _lib
    torch.utils.rename_privateuse1_backend("sim")
    torch._register_device_module("sim", device_module)
    for index, factor in enumerate(os.environ.get(SLOWNESS, "").split(",")):
        if factor:
            set_slowness(index, float(factor))
    trace(os.environ.get(TRACE) == "1")
    atexit.register(_end)
    if os.environ.get(REPORT):
        os._exit = _told_first(os._exit)  # commands of sbpipe end so, past what atexit holds
    return True


def _declared(lib: Any) -> Any:
    lib.sim_waits.restype = lib.sim_races.restype = ctypes.c_char_p
    for name in ("sim_busy_s", "sim_elapsed_s", "sim_clock_s", "sim_slept_s"):
        getattr(lib, name).restype = ctypes.c_double
    lib.sim_launches.restype = lib.sim_initial_seed.restype = ctypes.c_uint64
    lib.sim_rng_size.restype = ctypes.c_size_t
    lib.sim_seed.argtypes = [ctypes.c_int, ctypes.c_uint64]
    lib.sim_set_slowness.argtypes = [ctypes.c_int, ctypes.c_double]
    lib.sim_sleep.argtypes = [ctypes.c_int, ctypes.c_int64]
    lib.sim_set_kernel_ns.argtypes = [ctypes.c_int, ctypes.c_int64]
    lib.sim_set_copies.argtypes = [ctypes.c_double, ctypes.c_double]
    lib.sim_set_memory.argtypes = [ctypes.c_int, ctypes.c_uint64]
    return lib


def _told_first(leave: Callable[[int], NoReturn]) -> Callable[[int], NoReturn]:
    def told_first(code: int) -> NoReturn:
        _end()
        leave(code)

    return told_first


def _end() -> None:
    folder = os.environ.get(REPORT)
    if folder and not _lib.sim_is_forked():
        told = json.dumps({"arguments": sys.argv, **report()}, indent=1)
        (Path(folder) / f"{os.getpid()}.json").write_text(told)
    _lib.sim_stop()


# --- behaviour ------------------------------------------------------------------------------------------


def set_slowness(index: int, factor: float) -> None:
    """A kernel takes the device this many times the CPU time that its values took."""
    _lib.sim_set_slowness(index, factor)


def set_kernel_s(index: int, seconds: float | None) -> None:
    """Every kernel takes the device so long, times its slowness; None = as long as the CPU."""
    _lib.sim_set_kernel_ns(index, -1 if seconds is None else round(seconds * 1e9))


def keep_costs(index: int, is_on: bool = True) -> None:
    """From here on every kernel takes what the first of its kind took (operation, shapes, types).

    What a device computes then no longer depends on what else the machine does.
    """
    _lib.sim_keep_costs(index, int(is_on))


def set_copies(latency_s: float = 10e-6, bytes_per_s: float = 12e9) -> None:
    """What copies between host and devices take."""
    _lib.sim_set_copies(latency_s, bytes_per_s)


def set_memory(index: int, num_bytes: int = 8 << 30) -> None:
    """How much memory a device has."""
    _lib.sim_set_memory(index, num_bytes)


def trace(is_on: bool) -> None:
    """Keep the line of every kernel, so that a race names both; it costs some microseconds each."""
    _lib.sim_trace(int(is_on))


def mark() -> None:
    """Set the marker, which there is one of: waits for work that is queued from now on count as `newer`."""
    _lib.sim_mark()


def reset() -> None:
    """Forget waits, races and the marker, take all work so far as done, begin to count time again."""
    _lib.sim_reset()


# --- what was seen --------------------------------------------------------------------------------------


def waits() -> list[Wait]:
    """Waits of the host for a device, by line, thread and kind."""
    return [
        Wait(*sites.site(int(of)), kind, int(device), *map(int, counts), int(blocked) * 1e-9)
        for of, kind, device, *counts, blocked in _rows(_lib.sim_waits())
    ]


def races() -> list[Race]:
    """Pairs of unordered work on the same memory, memory reused too early, buffers overwritten in flight."""
    return [
        Race(kind, int(count), _work(*row[:3]), _work(*row[3:]))
        for kind, count, *row in _rows(_lib.sim_races())
    ]


def busy_s(index: int) -> float:
    """How long the device computed."""
    return float(_lib.sim_busy_s(index, _COMPUTE))


def copying_s(index: int) -> float:
    """How long it copied from and to the host, both ways together."""
    return float(_lib.sim_busy_s(index, _TO_DEVICE) + _lib.sim_busy_s(index, _TO_HOST))


def elapsed_s(index: int) -> float:
    """From the reset until now, or until all that is queued will be done."""
    return float(_lib.sim_elapsed_s(index))


def device_clock_s(index: int) -> float:
    """When the device will have done what is queued, on `time.monotonic`."""
    return float(_lib.sim_clock_s(index))


def slept_s(index: int) -> float:
    """How long it was told to sleep, from the reset on."""
    return float(_lib.sim_slept_s(index))


def num_launches(index: int) -> int:
    """Kernels and copies that were queued."""
    return int(_lib.sim_launches(index))


def is_touched(index: int) -> bool:
    """Whether this process has a context on the device: memory, pinned memory, a stream or an event."""
    return bool(_lib.sim_is_touched(index))


def report() -> dict[str, Any]:
    """All of it, for a file."""
    return {
        "waits": [wait._asdict() for wait in waits()],
        "races": [race._asdict() for race in races()],
        "devices": [
            {
                "busy_s": busy_s(index),
                "copying_s": copying_s(index),
                "elapsed_s": elapsed_s(index),
                "launches": num_launches(index),
                "is_touched": is_touched(index),
            }
            for index in range(device_module.device_count())
        ],
    }


def _rows(text: bytes) -> Iterator[list[str]]:
    for line in text.decode().splitlines():
        yield line.split("\t")


def _work(op: str, slot: str, of: str) -> str:
    device, stream = divmod(int(slot), _STREAMS)
    where, thread = sites.site(int(of))
    return f"{op} on stream {stream} of sim:{device} at {where} in thread {thread}"
