"""Facts from the operating system: processor, memory, folders of sockets and runs. Standard library only."""

import os
import platform
import shutil
from pathlib import Path

from sbpipe.errors import ConfigError, RunDirError
from sbpipe.link import private
from sbpipe.machine.doctor import cgroups
from sbpipe.machine.doctor.facts import Cpu, HostMemory, RunsFolder, SocketsFolder
from sbpipe.runs.directory import claim, default_path


def cpu() -> Cpu:
    """The processor, and the part of it that this process may use."""
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


def sockets_folder() -> SocketsFolder:
    """The folder where this user's trainers listen by default."""
    try:
        return SocketsFolder(str(private.make_folder()))
    except ConfigError as error:
        return SocketsFolder(str(private.candidates()[0]), str(error))


def runs_folder(mode: str) -> RunsFolder:
    """The folder of run directories, with the check that `run` makes."""
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
