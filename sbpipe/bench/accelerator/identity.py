"""Which devices these are."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from sbpipe.bench.accelerator.check import Fact, Size
from sbpipe.machine import devices, smi
from sbpipe.machine.doctor import choice


def measure(size: Size) -> Sequence[Fact]:
    """Name, kind, memory, driver and partitions of each."""
    facts = [Fact("accelerators", float(len(devices.accelerators())))]
    drivers = {told.get("driver_version", "") for told in smi.ask().values()} - {""}
    facts.append(Fact("driver", ", ".join(sorted(drivers)) or None, note="" if drivers else "nobody tells"))
    partitions = {told.get("mig.mode.current", "") for told in smi.ask().values()} - {""}
    facts.append(
        Fact("MIG mode", ", ".join(sorted(partitions)) or None, note="" if partitions else "nobody tells")
    )
    for found in choice.accelerators():
        facts += _of(found)
    return facts


def _of(found: Any) -> Iterator[Fact]:
    device, own = torch.device(found.device), found.device
    yield Fact(f"{own} name", found.name)
    for what, value, unit in (
        ("memory", found.total_bytes, "bytes"),
        ("memory free", found.free_bytes, "bytes"),
        ("busy before we begin", found.busy_percent, "%"),
        ("compute capability", found.capability, ""),
        ("bf16 instructions", found.has_bf16, ""),
        ("TF32", found.has_tf32, ""),
        ("is a partition (MIG)", found.is_partition, ""),
    ):
        yield Fact(f"{own} {what}", value, unit, "" if value is not None else f"{device.type} does not tell")
    module: Any = torch.get_device_module(device)
    properties = module.get_device_properties(device) if hasattr(module, "get_device_properties") else None
    for what in ("multi_processor_count", "L2_cache_size", "warp_size", "gcnArchName"):
        value = getattr(properties, what, None)
        if value is not None:
            yield Fact(f"{own} {what}", value)
    backend = torch.distributed.Backend.default_device_backend_map.get(device.type)
    yield Fact(f"{own} collectives", backend, note="" if backend else f"PyTorch has none for {device.type}")
