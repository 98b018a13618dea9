"""The limits of control groups, and so of containers, on this process; versions 1 and 2. Only reads.

The limits of all groups above it apply too. `root` is the folder that holds /proc and /sys.
"""

from pathlib import Path

_ROOT = Path("/")


def cpu_quota(root: Path = _ROOT) -> float | None:
    """How many cores' worth of time this process gets; None without a limit."""
    quotas = []
    for group in _groups("cpu", root):
        words = _read(group / "cpu.max").split() or [
            _read(group / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")
        ]
        if len(words) == 2 and all(word.isdigit() for word in words):  # "max" and "-1" mean no limit
            quotas.append(int(words[0]) / int(words[1]))
    return min(quotas, default=None)


def memory_limit(root: Path = _ROOT) -> tuple[int, int] | None:
    """The lowest limit in bytes, and how much of it is left, droppable pages included; None = no limit."""
    found = []
    for group in _groups("memory", root):
        limit = _read(group / "memory.max").strip() or _read(group / "memory.limit_in_bytes").strip()
        used = _read(group / "memory.current").strip() or _read(group / "memory.usage_in_bytes").strip()
        if limit.isdigit() and used.isdigit():
            stat = dict(line.split(maxsplit=1) for line in _read(group / "memory.stat").splitlines())
            # The page cache counts as used, but the kernel drops it when memory is short.
            droppable = int(stat.get("total_inactive_file") or stat.get("inactive_file") or 0)
            found.append((int(limit), max(0, int(limit) - int(used) + droppable)))
    return min(found, default=None)


def _groups(controller: str, root: Path) -> list[Path]:
    """The folders of this process's group and of those above it; a container may see only the last."""
    mount = root / "sys/fs/cgroup"
    groups: list[Path] = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        top = mount / controller if controllers else mount
        own = top / path.strip("/")
        groups += [group for group in (own, *own.parents) if group.is_relative_to(top)]
    return groups


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
