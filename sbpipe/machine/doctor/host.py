"""What the operating system tells: processor, memory, ports, folders. Thin, and without any library but
Python's own.
"""

import errno
import os
import platform
import shutil
import socket
from pathlib import Path

from sbpipe.config import LinkConfig
from sbpipe.errors import RunDirError
from sbpipe.link import addresses
from sbpipe.machine.doctor import cgroups
from sbpipe.machine.doctor.facts import Cpu, Folder, Memory, Port
from sbpipe.runs.directory import claim, default_path


def cpu() -> Cpu:
    """The processor, and what of it this process may use."""
    named = [
        line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")
    ]
    model = named[0] if named else platform.processor() or platform.machine()
    return Cpu(
        model, tuple(sorted(os.sched_getaffinity(0))), cgroups.cpu_quota(), os.environ.get("OMP_NUM_THREADS")
    )


def memory() -> Memory:
    """The host's memory, and the limit of this process's control group."""
    sizes = {
        line.partition(":")[0]: int(line.split()[1]) * 1024
        for line in _lines("/proc/meminfo")
        if line.endswith("kB")
    }
    total, available = sizes.get("MemTotal", 0), sizes.get("MemAvailable", 0)
    limit = cgroups.memory_limit()
    if limit is None or limit[0] >= total:
        return Memory(total, available)
    return Memory(total, min(available, limit[1]), limit[0])


def ports(bind: str = LinkConfig.bind) -> tuple[Port, ...]:
    """The pair of endpoints of a `link.bind`, and whether a trainer could listen there."""
    return tuple(port(endpoint) for endpoint in addresses.parse("link.bind", bind).endpoints())


def port(endpoint: str) -> Port:
    """Bind as zmq does, but never listen: a trainer that starts at this moment is not in our way, nor we in
    its.
    """
    host, _, number = endpoint.removeprefix("tcp://").rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, int(number)))
        except OSError as error:
            reason = "something listens there" if error.errno == errno.EADDRINUSE else error.strerror
            return Port(endpoint, reason or str(error))
    return Port(endpoint)


def runs_folder(mode: str) -> Folder:
    """The folder of run directories; asks the check that `run` asks."""
    path = default_path(mode)
    try:
        claim(path, resume=False, overwrite=False)
    except RunDirError as error:
        return folder(path.parent, str(error).partition(". ")[0])
    return folder(path.parent)


def folder(path: Path, problem: str = "") -> Folder:
    """Whether a folder can be written to, or made, and how much its disk would take."""
    there = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
    if not there.is_dir():
        problem = f"{there} is not a folder"
    elif not problem and not os.access(there, os.W_OK):
        problem = f"{there} is not writable"
    return Folder(str(path), shutil.disk_usage(there).free, problem)


def held_bytes(path: Path) -> int:
    """The size of all files in a folder."""
    return sum(file_bytes(Path(base) / name) for base, _, names in os.walk(path) for name in names)


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


def file_bytes(path: Path) -> int:
    """The size of a file; 0 if it is gone."""
    try:
        return path.lstat().st_size
    except OSError:
        return 0
