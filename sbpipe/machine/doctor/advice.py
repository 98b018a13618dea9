"""From facts to advice: what a person could mend, each in one line with the way out. Pure; looks at nothing
but the facts.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from sbpipe.machine.doctor.facts import Choice, Cpu, Facts, Role, SharedMemory

KIB, MIB, GIB = 2**10, 2**20, 2**30
DOCKER_SHM_BYTES = 64 * MIB
# Each role takes about 1 GiB with the default data and model.
ROLES_NEED_BYTES = 2 * GIB
LOW_DEVICE_BYTES = GIB
LOW_DISK_BYTES = GIB


@dataclass(frozen=True)
class Advice:
    """One line; `is_stop` when `run` would not get past it."""

    text: str
    is_stop: bool = False


def advise(facts: Facts) -> list[Advice]:
    """All advice, what would stop a run first."""
    found = [
        *_on_libraries(facts),
        *_on_accelerators(facts),
        *(_on_choice(facts.choice, facts.cpu) if facts.choice else ()),
        *_on_cpu(facts.cpu),
        *_on_memory(facts),
        *(_on_shared_memory(facts.shared_memory, facts.choice) if facts.shared_memory else ()),
        *_on_ports(facts),
        *_on_folders(facts),
    ]
    return sorted(found, key=lambda item: not item.is_stop)


def size(num_bytes: int) -> str:
    """Bytes as a person says them."""
    unit, name = (GIB, "GiB") if num_bytes >= GIB else (MIB, "MiB") if num_bytes >= MIB / 10 else (KIB, "KiB")
    return f"{num_bytes / unit:.{1 if num_bytes < 100 * unit else 0}f} {name}"


def plural(count: int, noun: str) -> str:
    """A count and its noun."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _on_libraries(facts: Facts) -> Iterator[Advice]:
    is_torch_broken = any(library.name == "torch" and library.problem for library in facts.libraries)
    for library in facts.libraries:
        if library.problem and library.name == "torchvision" and is_torch_broken:
            continue  # the one error says enough
        if library.problem and library.name == "torchvision":
            yield Advice(
                f"torchvision {library.version} does not import ({library.problem}): its models and data "
                "sets will not work. "
                "Install a pair that fits: pip install --upgrade torch torchvision"
            )
        elif library.problem:
            mend = (
                f"pip install --force-reinstall {library.name}"
                if library.version
                else f"pip install {library.name}"
            )
            yield Advice(
                f"{library.name} {library.version} does not import ({library.problem}). Mend it: {mend}",
                is_stop=True,
            )
    if facts.libzmq and not facts.has_curve:
        yield Advice(
            f"libzmq {facts.libzmq} was built without CURVE: roles on two hosts cannot talk. "
            "Take the wheel, which has it: pip install --force-reinstall --only-binary :all: pyzmq"
        )


def _on_accelerators(facts: Facts) -> Iterator[Advice]:
    if facts.choice_problem:
        yield Advice(
            f"the devices cannot be used ({facts.choice_problem}). Mend the driver, or hide it: "
            "CUDA_VISIBLE_DEVICES='' sbpipe run",
            is_stop=True,
        )
    for text in facts.torch_warnings:
        yield Advice(f"torch says: {text}")
    if facts.has_nvidia_driver and facts.choice and not facts.accelerators:
        if facts.torch_cuda is None:
            yield Advice(
                "an NVIDIA driver is here, but this torch was built without CUDA. "
                "Install one that has it: see https://pytorch.org/get-started"
            )
        else:
            yield Advice(
                f"an NVIDIA driver is here, but torch (CUDA {facts.torch_cuda}) sees no device. "
                "Check `nvidia-smi`, CUDA_VISIBLE_DEVICES, and docker's --gpus all"
            )
    for device in facts.accelerators:
        if device.free_bytes is not None and device.free_bytes < LOW_DEVICE_BYTES:
            yield Advice(
                f"{device.device} has only {size(device.free_bytes)} free: something else uses it. "
                "Stop that, or choose others with --set train.device=... --set selector.device=..."
            )


def _on_choice(choice: Choice, cpu: Cpu) -> Iterator[Advice]:
    on_cpu = [role for role in (choice.trainer, choice.selector) if role.device == "cpu"]
    if len(on_cpu) == 2 and not any(role.is_pinned for role in on_cpu) and len(cpu.cores) > 1:
        yield Advice(
            f"both roles would compute on all {len(cpu.cores)} cores, in each other's way: the driver of an "
            "accelerator is here, "
            "but no accelerator. Split the cores: --set train.device=cpu --set selector.device=cpu"
        )
    if cpu.omp_num_threads is not None:
        yield from _on_omp(cpu.omp_num_threads, choice.trainer, choice.selector, len(cpu.cores))


def _on_omp(omp: str, trainer: Role, selector: Role, num_cores: int) -> Iterator[Advice]:
    given = f"OMP_NUM_THREADS={omp}"
    roles = {"train.threads": trainer, "selector.threads": selector}
    free = {key: role for key, role in roles.items() if not role.is_pinned}
    if any(role.threads is None for role in free.values()):
        yield Advice(
            f"{given} is not one whole number, and the roles would fail on it. Unset it", is_stop=True
        )
    elif not free and any(str(role.threads) != omp for role in roles.values()):
        yield Advice(
            f"{given} has no effect on roles on the CPU. Unset it; their threads are train.threads and "
            "selector.threads"
        )
    for key, role in free.items():
        if (
            role.device == "cpu"
            and role.threads
            and (role.threads == 1 < num_cores or role.threads > num_cores)
        ):
            yield Advice(
                f"{given}: a role on the CPU would use {role.threads} threads on {num_cores} cores. Unset "
                f"it, or set {key}"
            )


def _on_cpu(cpu: Cpu) -> Iterator[Advice]:
    if len(cpu.cores) == 1:
        yield Advice(
            "only one core: both roles share it, whatever selector.threads and train.threads say, and "
            "nothing overlaps. "
            "Give more cores (docker --cpuset-cpus, taskset), or use --mode inline"
        )
    elif cpu.quota is not None and cpu.quota < len(cpu.cores):
        threads = max(1, int(cpu.quota) // 2)
        yield Advice(
            f"{len(cpu.cores)} cores, but the time of only {cpu.quota:g}: threads beyond that are put to "
            "sleep. "
            f"Raise docker's --cpus, or --set train.threads={threads} --set selector.threads={threads}"
        )


def _on_memory(facts: Facts) -> Iterator[Advice]:
    if facts.memory.available_bytes < ROLES_NEED_BYTES:
        limit = f" (limit {size(facts.memory.limit_bytes)})" if facts.memory.limit_bytes is not None else ""
        yield Advice(
            f"only {size(facts.memory.available_bytes)} of memory available{limit}; the two roles take about "
            f"{size(ROLES_NEED_BYTES)}. Free some, raise docker's --memory, or use --mode inline, which is "
            "one process"
        )


def _on_shared_memory(shared: SharedMemory, choice: Choice | None) -> Iterator[Advice]:
    way_out = "Raise docker's --shm-size, for instance to 1g (compose: shm_size)"
    if shared.problem:
        yield Advice(
            f"no shared memory ({shared.path}: {shared.problem}): weights will be pulled over the wire. "
            "Mount it writable"
        )
    elif choice and choice.weights == "pulled" and choice.snapshot_bytes > shared.fits_bytes:
        yield Advice(
            f"{shared.path} has only {size(shared.free_bytes)} free: weights will be pulled over the wire. "
            f"{way_out}"
        )
    elif shared.total_bytes <= DOCKER_SHM_BYTES:
        yield Advice(
            f"{shared.path} is only {size(shared.total_bytes)}: a model above {size(shared.fits_bytes)} will "
            "be pulled over the wire. "
            f"{way_out}"
        )
    if shared.leftovers:
        total = sum(item.num_bytes for item in shared.leftovers)
        yield Advice(
            f"{shared.path} holds {size(total)} from {plural(len(shared.leftovers), 'killed trainer')}. "
            "The next trainer removes it; or: rm "
            f"{' '.join(f'{shared.path}/{item.name}' for item in shared.leftovers[:3])}"
        )


def _on_ports(facts: Facts) -> Iterator[Advice]:
    for port in facts.ports:
        if port.problem:
            yield Advice(
                f"{port.endpoint} is taken ({port.problem}). `sbpipe run` finds free ports by itself; "
                "give `sbpipe trainer` --bind tcp://127.0.0.1:0, or stop what is there"
            )


def _on_folders(facts: Facts) -> Iterator[Advice]:
    if facts.runs.problem:
        yield Advice(
            f"no run directory can be made: {facts.runs.problem}. Start from another folder, or use "
            "--run-dir",
            is_stop=True,
        )
    if facts.cache is not None and facts.cache.problem:
        yield Advice(
            f"data will not be cached: {facts.cache.problem}. Set XDG_CACHE_HOME to a folder that is"
        )
    for folder in (facts.runs, facts.cache):
        if folder is not None and folder.free_bytes < LOW_DISK_BYTES:
            yield Advice(
                f"only {size(folder.free_bytes)} left on the disk of {folder.path}. Free some; checkpoints "
                "may fail"
            )
