"""Asks `nvidia-smi` what torch does not tell of NVIDIA's devices: driver, others' use, partitions. No torch.

Devices are identified by their place on the bus, because a process may see only some of them, in another
order. Data that identifies a device, host or person (serial numbers, processes) is not asked for.
"""

import subprocess
from typing import TypeAlias

FIELDS = ("pci.bus_id", "driver_version", "utilization.gpu", "mig.mode.current", "compute_mode")
_DEADLINE_S = 10.0

Told: TypeAlias = dict[str, str]
"""Values by field; fields that the device does not have are missing."""


def ask() -> dict[str, Told]:
    """The values of every device, by its place on the bus; {} if there is no `nvidia-smi`."""
    command = ["nvidia-smi", f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_DEADLINE_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return {}
    return read(done.stdout)


def read(text: str) -> dict[str, Told]:
    """The lines of the answer."""
    found: dict[str, Told] = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == len(FIELDS):
            told = dict(zip(FIELDS, cells, strict=True))
            place = told.pop("pci.bus_id").lower()
            # In our form of the domain: torch has a number, this program eight digits.
            domain, _, rest = place.partition(":")
            found[f"{int(domain, 16):x}:{rest}"] = {
                name: cell for name, cell in told.items() if not cell.startswith("[")
            }
    return found


def place(domain: int, bus: int, device: int) -> str:
    """A device's place on the bus, as `ask` writes it."""
    return f"{domain:x}:{bus:02x}:{device:02x}.0"
