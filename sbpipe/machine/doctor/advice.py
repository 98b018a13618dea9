"""Makes advice from facts: what the user could change, one line each with the way out. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass

from sbpipe.machine.doctor.facts import Accelerator, Cpu, Facts, SharedMemory

KIB, MIB, GIB = 2**10, 2**20, 2**30
DOCKER_SHM_BYTES = 64 * MIB
# Each role takes about 1 GiB with the default data and model.
ROLES_NEED_BYTES = 2 * GIB
LOW_DEVICE_BYTES = GIB
OTHERS_BYTES, BUSY_PERCENT = GIB, 10
LOW_DISK_BYTES = GIB


@dataclass(frozen=True)
class Advice:
    """One line; `is_stop` if `run` would fail because of it."""

    text: str
    is_stop: bool = False


def advise(facts: Facts) -> list[Advice]:
    """All advice; what would stop a run comes first."""
    found = [
        *_on_libraries(facts),
        *_on_accelerators(facts),
        *_on_roles(facts),
        *_on_cpu(facts.cpu),
        *_on_memory(facts),
        *(_on_shared_memory(facts.shared_memory) if facts.shared_memory else ()),
        *_on_sockets(facts),
        *_on_runs(facts),
    ]
    return sorted(found, key=lambda item: not item.is_stop)


def size(num_bytes: int) -> str:
    """Bytes as people write them."""
    unit, name = (GIB, "GiB") if num_bytes >= GIB else (MIB, "MiB") if num_bytes >= MIB / 10 else (KIB, "KiB")
    return f"{num_bytes / unit:.{1 if num_bytes < 100 * unit else 0}f} {name}"


def plural(count: int, noun: str) -> str:
    """A count and its noun."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _on_libraries(facts: Facts) -> Iterator[Advice]:
    broken = {library.name: library for library in facts.libraries if library.problem}
    for name, library in broken.items():
        found = f"{name} {library.version} does not import ({library.problem})"
        if name != "torchvision":
            force = "--force-reinstall " if library.version else ""
            yield Advice(f"{found}. Repair it: pip install {force}{name}", is_stop=True)
        elif "torch" not in broken:  # else the one error says enough
            yield Advice(
                f"{found}: its models and data sets will not work. Install a pair that fits: "
                "pip install --upgrade torch torchvision"
            )


def _on_accelerators(facts: Facts) -> Iterator[Advice]:
    if facts.device_problem:
        yield Advice(
            f"the devices cannot be used ({facts.device_problem}). Repair the driver, or hide it: "
            "CUDA_VISIBLE_DEVICES='' sbpipe run",
            is_stop=True,
        )
    for text in facts.torch_warnings:
        yield Advice(f"torch says: {text}")
    if facts.has_nvidia_driver and facts.trainer and not facts.accelerators:
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
        elif (use := _use_by_others(device)) is not None:
            yield Advice(
                f"{device.device} is shared with others ({use}): step times will vary, and with them what "
                "`auto` chooses by its measurements (selection.keep, selector.precision). Stop them, or "
                "choose another device with --set train.device=... --set selector.device=..."
            )
    yield from _on_order(facts)


def _use_by_others(device: Accelerator) -> str | None:
    """The use of a device by others, before we use it; None if it is negligible."""
    busy = device.busy_percent or 0
    if device.total_bytes is None or device.free_bytes is None:
        return f"{busy} % busy" if busy >= BUSY_PERCENT else None
    taken = device.total_bytes - device.free_bytes
    # A desktop, and the driver itself, hold some hundred MiB.
    if busy < BUSY_PERCENT and (taken < OTHERS_BYTES or taken < device.total_bytes / 10):
        return None
    return f"{busy} % busy, {size(taken)} of {size(device.total_bytes)} taken"


def _on_order(facts: Facts) -> Iterator[Advice]:
    """The trainer takes the first device, which need not be the best."""
    first, *rest = facts.accelerators or (None,)
    if first is None or facts.trainer is None or facts.trainer.device != first.device:
        return
    for other in rest:
        if _generation(other) > _generation(first) > (0, 0):
            yield Advice(
                f"the trainer would take {first.device} ({first.name}), though {other.device} ({other.name}) "
                "is of a newer kind. If that one is faster: "
                f"--set train.device={other.device} --set selector.device={first.device}"
            )
            return


def _generation(device: Accelerator) -> tuple[int, ...]:
    return tuple(int(part) for part in (device.capability or "0.0").split("."))


def _on_roles(facts: Facts) -> Iterator[Advice]:
    roles = [role for role in (facts.trainer, facts.selector) if role is not None]
    are_on_cpu = roles and all(role.device == "cpu" for role in roles)
    if are_on_cpu and not any(role.is_pinned for role in roles) and len(facts.cpu.cores) > 1:
        yield Advice(
            f"both roles would compute on all {len(facts.cpu.cores)} cores and slow each other down: the "
            "driver of an accelerator is here, but no accelerator. Split the cores: "
            "--set train.device=cpu --set selector.device=cpu"
        )
    omp = facts.cpu.omp_num_threads
    if omp is not None and any(role.is_pinned and str(role.threads) != omp for role in roles):
        yield Advice(
            f"OMP_NUM_THREADS={omp} has no effect on roles on the CPU. Unset it; their threads are "
            "train.threads and selector.threads"
        )


def _on_cpu(cpu: Cpu) -> Iterator[Advice]:
    if len(cpu.cores) == 1:
        yield Advice(
            "only one core: both roles share it, whatever selector.threads and train.threads say, and "
            "nothing overlaps. Give more cores (docker --cpuset-cpus, taskset), or use --mode inline"
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


def _on_shared_memory(shared: SharedMemory) -> Iterator[Advice]:
    if shared.problem:
        yield Advice(
            f"no shared memory ({shared.path}: {shared.problem}): weights will be pulled over the wire. "
            "Mount it writable"
        )
    elif min(shared.total_bytes, shared.free_bytes) <= DOCKER_SHM_BYTES:
        yield Advice(
            f"{shared.path} has only {size(shared.free_bytes)} free: a model above {size(shared.fits_bytes)} "
            "will be pulled over the wire. Raise docker's --shm-size, for instance to 1g (compose: shm_size)"
        )


def _on_sockets(facts: Facts) -> Iterator[Advice]:
    if facts.sockets.problem:
        yield Advice(facts.sockets.problem, is_stop=True)


def _on_runs(facts: Facts) -> Iterator[Advice]:
    runs = facts.runs
    if runs.problem:
        yield Advice(
            f"no run directory can be made: {runs.problem}. Start from another folder, or use --run-dir",
            is_stop=True,
        )
    if runs.free_bytes < LOW_DISK_BYTES:
        yield Advice(
            f"only {size(runs.free_bytes)} left on the disk of {runs.path}. Free some; checkpoints may fail"
        )
