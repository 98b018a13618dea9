"""Facts from torch and our own rooms, and where `run` would compute, from the code that `run` uses."""

import errno
import os
import shutil
from typing import Any

import torch

from sbpipe.config import Config
from sbpipe.machine import cores, devices, smi
from sbpipe.machine.beside import cores_left
from sbpipe.machine.doctor.facts import Accelerator, Role, SharedMemory
from sbpipe.weights.leftovers import SHARED_MEMORY
from sbpipe.weights.slots import Slots

_NUM_SLOTS, _PAGE = 3, 4096


def accelerators() -> tuple[Accelerator, ...]:
    """Name and memory of each accelerator, of whatever kind."""
    return tuple(_accelerator(device) for device in devices.accelerators())


def _accelerator(device: torch.device) -> Accelerator:
    module: Any = torch.get_device_module(device)
    name = module.get_device_name(device) if hasattr(module, "get_device_name") else device.type
    ask: Any = getattr(torch.accelerator, "get_memory_info", None) or getattr(module, "mem_get_info", None)
    try:
        free, total = ask(device) if ask else (None, None)
    except RuntimeError:  # this kind of device cannot tell, or another process holds it exclusively
        free, total = None, None
    return Accelerator(str(device), name, total, free, **(_of_nvidia(device) if _is_nvidia(device) else {}))


def _is_nvidia(device: torch.device) -> bool:
    return device.type == "cuda" and torch.version.hip is None


def _of_nvidia(device: torch.device) -> dict[str, Any]:
    """Facts that only NVIDIA's devices have."""
    own: Any = torch.cuda.get_device_properties(device)
    told = smi.ask().get(smi.place(own.pci_domain_id, own.pci_bus_id, own.pci_device_id), {})
    busy = told.get("utilization.gpu", "")
    # Since Ampere.
    is_recent = own.major >= 8
    return {
        "capability": f"{own.major}.{own.minor}",
        "has_bf16": is_recent,
        "has_tf32": is_recent,
        "busy_percent": int(busy) if busy.isdecimal() else None,
        "is_partition": "MIG" in own.name,
    }


def shared_memory() -> SharedMemory:
    """Its size, and whether slots can be made there, tried with the smallest ones."""
    path, problem = str(SHARED_MEMORY), ""
    try:
        usage = shutil.disk_usage(path)
    except OSError as error:
        return SharedMemory(path, 0, 0, 0, error.strerror or str(error))
    try:
        Slots.create(1, num_slots=_NUM_SLOTS, name=f"doctor-{os.getpid()}").close()
    except OSError as error:
        # A full one is not broken: the size that still fits says enough.
        problem = "" if error.errno == errno.ENOSPC else error.strerror or str(error)
    return SharedMemory(
        path, usage.total, usage.free, 0 if problem else largest_snapshot(usage.free), problem
    )


def largest_snapshot(free_bytes: int) -> int:
    """The largest snapshot whose slots and header fit: see `Slots.create`."""
    return max(0, (free_bytes - _PAGE) // _NUM_SLOTS // _PAGE * _PAGE)


def selector(config: Config, trainer: str, device: str) -> Role:
    """Where the selector would compute, planned for these devices."""
    left = cores_left(config, trainer, device)
    if left is None:
        return role("selector", device, config.selector.device, config.selector.threads)
    note = f"{trainer}, the only accelerator, is the trainer's; the other cores feed it"
    return Role(device, tuple(left), len(left), is_pinned=True, note=note)


def role(name: str, device: str, given_device: str, threads: int) -> Role:
    """Where a role would compute, given this device and number of threads in the settings."""
    own = cores.cores_of(name, given_device, threads)
    if own is not None:
        return Role(device, tuple(own), len(own), is_pinned=True)
    # As `devices.use` reads it: without a number torch decides.
    omp = os.environ.get("OMP_NUM_THREADS", "")
    default = int(omp) if omp.isdecimal() and int(omp) else torch.get_num_threads()
    return Role(device, tuple(sorted(os.sched_getaffinity(0))), default, is_pinned=False)
