"""What the doctor knows of a machine: frozen records without behaviour. They know neither torch nor where a
fact comes from.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Cpu:
    """The processor as this process may use it; `quota` is the control group's limit in cores, None without
    one.
    """

    model: str
    cores: tuple[int, ...]
    quota: float | None = None
    omp_num_threads: str | None = None


@dataclass(frozen=True)
class Accelerator:
    """One accelerator that torch sees; memory None where it cannot be asked for."""

    device: str
    name: str
    total_bytes: int | None = None
    free_bytes: int | None = None


@dataclass(frozen=True)
class Memory:
    """The host's memory; `available_bytes` is within the control group's limit, if it has one."""

    total_bytes: int
    available_bytes: int
    limit_bytes: int | None = None


@dataclass(frozen=True)
class Leftover:
    """Slots whose trainer is gone."""

    name: str
    num_bytes: int


@dataclass(frozen=True)
class SharedMemory:
    """Where slots live; `problem` says why none can be made there, `fits_bytes` how large a snapshot may
    be.
    """

    path: str
    total_bytes: int
    free_bytes: int
    fits_bytes: int
    problem: str = ""
    leftovers: tuple[Leftover, ...] = ()


@dataclass(frozen=True)
class Port:
    """One endpoint that a trainer listens at by default; `problem` says why it could not."""

    endpoint: str
    problem: str = ""


@dataclass(frozen=True)
class Library:
    """One library; `problem` is the error of importing it."""

    name: str
    version: str
    problem: str = ""


@dataclass(frozen=True)
class Folder:
    """A folder that is written to, there or yet to be made; free bytes are those of its disk. `num_bytes`
    None = not counted.
    """

    path: str
    free_bytes: int
    problem: str = ""
    num_bytes: int | None = None


@dataclass(frozen=True)
class Role:
    """Where a role would compute; `threads` None when the environment's number of them is none."""

    device: str
    cores: tuple[int, ...]
    threads: int | None
    is_pinned: bool


@dataclass(frozen=True)
class Choice:
    """What `sbpipe run` would choose without a config; `weights` is "shared" (memory) or "pulled" (over the
    wire).
    """

    mode: str
    data: str
    model: str
    trainer: Role
    selector: Role
    amp: str
    precision: str
    weights: str
    num_slots: int
    snapshot_bytes: int


@dataclass(frozen=True)
class Facts:
    """All of it. What only torch and our own rooms can tell is None when a library they need does not
    import.
    """

    cpu: Cpu
    memory: Memory
    ports: tuple[Port, ...]
    libraries: tuple[Library, ...]
    libzmq: str
    has_curve: bool
    runs: Folder
    has_nvidia_driver: bool = False
    torch_cuda: str | None = None
    accelerators: tuple[Accelerator, ...] = ()
    torch_warnings: tuple[str, ...] = ()
    shared_memory: SharedMemory | None = None
    cache: Folder | None = None
    choice: Choice | None = None
    choice_problem: str = ""
