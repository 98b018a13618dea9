"""The doctor's facts of a machine: frozen records. An empty `problem` means that there is none."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Cpu:
    """The processor as this process may use it; `quota` is the limit in cores, None without."""

    model: str
    cores: tuple[int, ...]
    quota: float | None = None
    omp_num_threads: str | None = None


@dataclass(frozen=True)
class Accelerator:
    """One accelerator that torch sees; None means unknown."""

    device: str
    name: str
    total_bytes: int | None = None
    free_bytes: int | None = None
    capability: str | None = None
    """NVIDIA's compute capability."""
    has_bf16: bool | None = None
    """Whether it has instructions for bf16, and does not emulate it."""
    has_tf32: bool | None = None
    busy_percent: int | None = None
    """The share of the last second or so in which it was in use by any process."""
    is_partition: bool | None = None
    """Whether it is a part of a device (MIG)."""


@dataclass(frozen=True)
class HostMemory:
    """The host's memory; `available_bytes` is within the control group's limit, if it has one."""

    total_bytes: int
    available_bytes: int
    limit_bytes: int | None = None


@dataclass(frozen=True)
class SharedMemory:
    """The memory that weights are published in; `fits_bytes` is the largest model that fits."""

    path: str
    total_bytes: int
    free_bytes: int
    fits_bytes: int
    problem: str = ""


@dataclass(frozen=True)
class SocketsFolder:
    """The folder of this user's Unix sockets; `problem` is why others could reach into it, or ""."""

    path: str
    problem: str = ""


@dataclass(frozen=True)
class Library:
    """One library; `problem` is the error of importing it."""

    name: str
    version: str
    problem: str = ""


@dataclass(frozen=True)
class RunsFolder:
    """The folder of run directories, there or yet to be made; free bytes are those of its disk."""

    path: str
    free_bytes: int
    problem: str = ""


@dataclass(frozen=True)
class Role:
    """Where a role would compute; without pinning it may use all cores. `note` explains an unusual choice."""

    device: str
    cores: tuple[int, ...]
    threads: int
    is_pinned: bool
    note: str = ""


@dataclass(frozen=True)
class Facts:
    """All facts; those from torch and our own rooms are None if a library does not import."""

    cpu: Cpu
    memory: HostMemory
    sockets: SocketsFolder
    libraries: tuple[Library, ...]
    runs: RunsFolder
    has_nvidia_driver: bool = False
    torch_cuda: str | None = None
    torch_warnings: tuple[str, ...] = ()
    accelerators: tuple[Accelerator, ...] = ()
    shared_memory: SharedMemory | None = None
    trainer: Role | None = None
    selector: Role | None = None
    device_problem: str = ""
