"""The memory that this host has left, according to the kernel. Knows no role."""

from pathlib import Path

_MEMINFO = Path("/proc/meminfo")


def available_bytes() -> int | None:
    """Memory available without swapping; None if the system does not tell."""
    try:
        lines = _MEMINFO.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), None)
