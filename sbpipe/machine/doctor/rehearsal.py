"""What torch and our own rooms tell, and what `run` would choose: by asking the code that `run` asks. Leaves
nothing behind.
"""

import errno
import os
import shutil
from dataclasses import replace
from typing import Any

import torch

from sbpipe.config import Config
from sbpipe.data.cache import cache_folder
from sbpipe.data.glyphs import NUM_DIGITS
from sbpipe.data.painter import SIDE
from sbpipe.machine import cores, devices
from sbpipe.machine.doctor.facts import Accelerator, Choice, Folder, Leftover, Role, SharedMemory
from sbpipe.machine.doctor.host import file_bytes, folder, held_bytes
from sbpipe.models import build_model, parts_of
from sbpipe.weights.leftovers import SHARED_MEMORY, leftovers
from sbpipe.weights.manifest import build_manifest
from sbpipe.weights.slots import Slots

NUM_SLOTS = 3
_PAGE = 4096
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


def cache() -> Folder:
    """The folder where data sets are kept."""
    path = cache_folder()
    return replace(folder(path), num_bytes=held_bytes(path))


def accelerators() -> tuple[Accelerator, ...]:
    """Name and memory of each accelerator, of whatever kind."""
    return tuple(_accelerator(device) for device in devices.accelerators())


def _accelerator(device: torch.device) -> Accelerator:
    module: Any = torch.get_device_module(device)
    name = module.get_device_name(device) if hasattr(module, "get_device_name") else device.type
    ask: Any = getattr(torch.accelerator, "get_memory_info", None) or getattr(module, "mem_get_info", None)
    try:
        free, total = ask(device) if ask else (None, None)
    except RuntimeError:  # a kind that cannot tell, or a device that another process holds alone
        free, total = None, None
    return Accelerator(str(device), name, total, free)


def shared_memory() -> SharedMemory:
    """Size and leftovers of shared memory; whether slots can be made there is tried, with the smallest that
    there are.
    """
    path, problem = str(SHARED_MEMORY), ""
    try:
        usage = shutil.disk_usage(path)
    except OSError as error:
        return SharedMemory(path, 0, 0, 0, error.strerror or str(error))
    found = leftover_slots()
    try:
        Slots.create(1, num_slots=NUM_SLOTS, name=f"doctor-{os.getpid()}").close()
    except OSError as error:
        problem = "" if error.errno == errno.ENOSPC else error.strerror or str(error)
    # A trainer clears leftovers away before it makes its own slots, so they do not count against it.
    fits = 0 if problem else largest_snapshot(usage.free + sum(item.num_bytes for item in found))
    return SharedMemory(path, usage.total, usage.free, fits, problem, found)


def largest_snapshot(free_bytes: int) -> int:
    """The largest snapshot whose slots fit beside their header: see `Slots.create`."""
    return max(0, (free_bytes - _PAGE) // NUM_SLOTS // _PAGE * _PAGE)


def leftover_slots() -> tuple[Leftover, ...]:
    """What the next trainer would remove, and we leave alone; one that is removed meanwhile counts no
    bytes.
    """
    return tuple(Leftover(path.name, file_bytes(path)) for path in sorted(leftovers()))


def choose(config: Config, shared: SharedMemory) -> Choice:
    """What `run` would choose here under these settings."""
    model = build_model(config.model, num_classes=NUM_DIGITS, input_shape=(3, SIDE, SIDE), seed=config.seed)
    num_bytes = build_manifest(model, parts_of(model), config.sync.dtype).num_bytes
    trainer, selector = devices.plan(config.train.device, config.selector.device)
    return Choice(
        mode=config.mode,
        data=config.data.name,
        model=config.model.name,
        trainer=rehearse("trainer", trainer, config.train.device, config.train.threads),
        selector=rehearse("selector", selector, config.selector.device, config.selector.threads),
        amp=config.train.amp,
        precision=config.selector.precision,
        weights="shared" if config.sync.shared_memory and num_bytes <= shared.fits_bytes else "pulled",
        num_slots=NUM_SLOTS + config.lag,
        snapshot_bytes=num_bytes,
    )


def rehearse(role: str, device: str, given_device: str, threads: int) -> Role:
    """Pin this thread as the role would pin itself, see what that did, and undo it."""
    default = torch.get_num_threads()
    affinity = os.sched_getaffinity(0)
    environment = {name: os.environ.pop(name) for name in _THREAD_VARIABLES if name in os.environ}
    try:
        cores.pin_role(role, given_device, threads)
        is_pinned = "OMP_NUM_THREADS" in os.environ
        omp = os.environ.get("OMP_NUM_THREADS", environment.get("OMP_NUM_THREADS", "0"))
        return Role(device, tuple(sorted(os.sched_getaffinity(0))), threads_of(omp, default), is_pinned)
    finally:
        os.sched_setaffinity(0, affinity)
        for name in _THREAD_VARIABLES:
            os.environ.pop(name, None)
        os.environ.update(environment)


def threads_of(omp_num_threads: str, default: int) -> int | None:
    """The threads of a process with this OMP_NUM_THREADS; None where `devices.use` would fail on it."""
    try:
        threads = int(omp_num_threads)
    except ValueError:
        return None
    return None if threads < 0 else threads or default
