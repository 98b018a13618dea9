"""What the operating system tells: processor, memory, ports, the folder of runs. No library but Python's."""

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
from sbpipe.machine.doctor.facts import Cpu, Endpoint, HostMemory, RunsFolder
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


def memory() -> HostMemory:
    """The host's memory, and the limit of this process's control group."""
    sizes = {
        line.partition(":")[0]: int(line.split()[1]) * 1024
        for line in _lines("/proc/meminfo")
        if line.endswith("kB")
    }
    total, available = sizes.get("MemTotal", 0), sizes.get("MemAvailable", 0)
    limit = cgroups.memory_limit()
    if limit is None or limit[0] >= total:
        return HostMemory(total, available)
    return HostMemory(total, min(available, limit[1]), limit[0])


def endpoints(bind: str = LinkConfig.bind) -> tuple[Endpoint, ...]:
    """The pair of addresses of a `link.bind`, and whether a trainer could listen there."""
    return tuple(endpoint(address) for address in addresses.parse("link.bind", bind).endpoints())


def endpoint(address: str) -> Endpoint:
    """Whether one address is free."""
    host, _, number = address.removeprefix("tcp://").rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            # Bound as zmq does, but never listened at: a trainer that starts at this moment is not disturbed.
            probe.bind((host, int(number)))
        except OSError as error:
            reason = "something listens there" if error.errno == errno.EADDRINUSE else error.strerror
            return Endpoint(address, reason or str(error))
    return Endpoint(address)


def runs_folder(mode: str) -> RunsFolder:
    """The folder of run directories; asks the check that `run` asks."""
    path, problem = default_path(mode), ""
    try:
        claim(path, resume=False, overwrite=False)
    except RunDirError as error:
        problem = str(error).partition(". ")[0]
    folder = path.parent
    there = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    if not there.is_dir():
        problem = f"{there} is not a folder"
    elif not problem and not os.access(there, os.W_OK):
        problem = f"{there} is not writable"
    return RunsFolder(str(folder), shutil.disk_usage(there).free, problem)


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
