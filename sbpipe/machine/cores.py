"""The CPU cores of each role. Runs before torch is imported: OpenMP reads its environment once."""

import ctypes
import importlib.util
import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# Files of the drivers of NVIDIA, AMD, WSL, the kernel's accel class and Ascend: torch is not imported yet.
_ACCELERATOR_FILES = ("nvidiactl", "kfd", "dxg", "accel", "davinci_manager")

_FOR_TRAINER = 2
"""Cores of a trainer on an accelerator beside its loaders: one launches its kernels, one prepares batches."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT_BYTES = 1 << 30


def share(role: str, threads: int, available: list[int] | None = None) -> list[int]:
    """The cores of a role: the trainer's from the front, the selector's from the back, by default half.

    Inline runs on the trainer's share too, so that it computes with as many threads, and so the same bits, as
    lockstep does.
    """
    cores = sorted(os.sched_getaffinity(0)) if available is None else available
    count = min(len(cores), threads or max(1, len(cores) // 2))
    return cores[-count:] if role == "selector" else cores[:count]


def beside_accelerator(workers: int, available: list[int] | None = None) -> list[int]:
    """The cores of a selector on the CPU whose trainer computes on an accelerator of the same machine.

    From the back, all that the trainer does not need to feed its device; if there are few, half of them.
    """
    cores = sorted(os.sched_getaffinity(0)) if available is None else available
    return cores[-max(1, len(cores) // 2, len(cores) - _FOR_TRAINER - workers) :]


def pin(cores: list[int]) -> None:
    """Compute on these cores only, with one thread each."""
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(len(cores))
    # For every existing thread: the call affects only one thread, and those that it starts later.
    for thread in os.listdir("/proc/self/task"):
        with suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread), cores)


class SpareCores:
    """Cores on which a role does not compute, for its threads that talk, load and write.

    On a core that trains, a thread that wakes for a message costs the step time and cache.
    """

    def __init__(self, cores: Collection[int] = ()) -> None:
        """Without cores, threads stay on the cores of the thread that starts them."""
        self._cores = frozenset(cores)

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._cores)

    @contextmanager
    def for_threads(self) -> Iterator[None]:
        """Threads started inside this context run on these cores."""
        own = os.sched_getaffinity(0)
        if self._cores:
            os.sched_setaffinity(0, self._cores)
        try:
            yield
        finally:
            os.sched_setaffinity(0, own)


NO_SPARE_CORES = SpareCores()


def pin_role(
    role: str, device: str, threads: int, own: Callable[[list[int], int], list[int]] | None = None
) -> SpareCores:
    """Pin a role to its cores, if it has its own; returns the cores that it leaves.

    `own` chooses from the available cores in place of the role's usual share; then others have the rest.
    """
    if computes_on_cpu(device):
        keep_memory()
    available, cores = os.sched_getaffinity(0), cores_of(role, device, threads, own)
    if cores is None:
        return NO_SPARE_CORES
    pin(cores)
    return NO_SPARE_CORES if own else SpareCores(available.difference(cores))


def cores_of(
    role: str, device: str, threads: int, own: Callable[[list[int], int], list[int]] | None = None
) -> list[int] | None:
    """The cores of a role that computes on the CPU, or has its threads set; None = it may use all."""
    if not computes_on_cpu(device) and not threads:
        return None
    return own(sorted(os.sched_getaffinity(0)), threads) if own else share(role, threads)


def computes_on_cpu(device: str) -> bool:
    """Whether this device name, or one in a list with commas, will mean the CPU."""
    names = [name.strip() for name in device.split(",")]
    return "cpu" in names or ("auto" in names and not may_have_accelerator())


def keep_memory() -> None:
    """Keep freed memory in this process, unless the environment tells glibc otherwise.

    By default large blocks go back to the kernel, and are mapped and cleared again in the next step: that
    costs about a tenth of a train step on the CPU (`sbpipe bench memory`).
    """
    libc = ctypes.CDLL(None)
    is_told = {
        "MALLOC_TRIM_THRESHOLD_",
        "MALLOC_MMAP_THRESHOLD_",
    } & os.environ.keys() or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "")
    if is_told or not hasattr(libc, "mallopt"):
        return
    # Setting either threshold stops glibc from adjusting the other, so the trim threshold is set only if the
    # mmap threshold could be. Older versions refuse more than 32 MiB.
    if any(libc.mallopt(_M_MMAP_THRESHOLD, most) for most in (_KEPT_BYTES, 1 << 25)):
        libc.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


def may_have_accelerator() -> bool:
    """Whether a driver of an accelerator is installed; torch, asked later, decides."""
    return any((Path("/dev") / name).exists() for name in _ACCELERATOR_FILES) or _may_have_xpu()


def _may_have_xpu(dev: Path = Path("/dev")) -> bool:
    """Whether there is a graphics device, and a torch that computes on Intel's.

    Nearly every machine with a screen has a graphics device: by that alone roles on the CPU would not be
    pinned to their own cores.
    """
    if not any(dev.glob("dri/renderD*")):
        return False
    found = importlib.util.find_spec("torch")
    places = found.submodule_search_locations or [] if found is not None else []
    return any(any(Path(place).glob("lib/*torch_xpu*")) for place in places)
