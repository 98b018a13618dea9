"""Which cells may run side by side, and on which cores. Knows neither plans nor processes.

The results of a run on a logical clock do not depend on its speed, so several of them may share a machine. A
run whose results depend on arrival or time, or whose speed is measured, gets the machine to itself. On a
share of the cores a run may compute with fewer threads, which sum in another order and give other numbers: a
study in which that would happen is refused.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from sbpipe.config import Config
from sbpipe.errors import ConfigError
from sbpipe.machine.cores import share


def runs_alone(config: Config) -> bool:
    """Whether a run must have the machine to itself."""
    return not config.is_clocked or config.num_ranks > 1 or bool(config.train.seconds)


def core_shares(cores: Sequence[int], jobs: int) -> list[list[int]]:
    """The cores in `jobs` parts of neighbours; the first parts are larger if they cannot be equal."""
    ordered = sorted(cores)
    sizes = [len(ordered) // jobs + (k < len(ordered) % jobs) for k in range(jobs)]
    return [ordered[sum(sizes[:k]) : sum(sizes[: k + 1])] for k in range(jobs)]


def refuse_jobs(jobs: int, num_cores: int) -> None:
    """Refuse more jobs than cores: every cell that runs beside others needs its own core."""
    if jobs < 1:
        raise ConfigError("--jobs", jobs, "is not a number of cells at a time", "Write --jobs 1 or more")
    if jobs > num_cores:
        have = f"there {'is' if num_cores == 1 else 'are'} {num_cores} core{'' if num_cores == 1 else 's'}"
        raise ConfigError(
            "--jobs", jobs, f"{have}, and each cell needs one of its own", f"Write at most --jobs {num_cores}"
        )


def threads_on(config: Config, num_cores: int) -> dict[str, int]:
    """The threads of each role of a run with this many cores, by the key that sets them.

    A role on a named accelerator, without a setting for threads, is left out: it does not compute on the CPU.
    """
    roles = {"train.threads": ("trainer", config.train.device, config.train.threads)}
    if not config.is_one_process:
        roles["selector.threads"] = ("selector", config.selector.device, config.selector.threads)
    return {
        key: len(share(role, threads, list(range(num_cores))))
        for key, (role, device, threads) in roles.items()
        if threads or device in ("cpu", "auto")
    }


def other_threads(config: Config, jobs: int, num_cores: int) -> tuple[str, int, int] | None:
    """The first key whose role has other threads on a share than alone, with threads alone and there."""
    alone = threads_on(config, num_cores)
    for cores in core_shares(range(num_cores), jobs):
        for key, there in threads_on(config, len(cores)).items():
            if there != alone[key]:
                return key, alone[key], there
    return None


def refuse_other_threads(cells: Iterable[tuple[str, Config]], jobs: int, num_cores: int) -> None:
    """Refuse cells that would compute other numbers in company than alone; `cells` are (name, settings)."""
    for label, config in cells:
        found = None if runs_alone(config) else other_threads(config, jobs, num_cores)
        if found is None:
            continue
        key, alone, there = found
        section, _, name = key.partition(".")
        threads = f"{there} thread{'' if there == 1 else 's'}"
        reason = (
            f"with --jobs {jobs} on {num_cores} cores cell {label!r} would compute with {threads}, "
            f"alone with {alone}: not the same numbers"
        )
        way_out = "Give --set train.threads=1 --set selector.threads=1, or --jobs 1"
        raise ConfigError(key, getattr(getattr(config, section), name), reason, way_out)


@contextmanager
def on_cores(cores: Sequence[int] | None) -> Iterator[None]:
    """Processes started inside this context get these cores; None = all. This process gets its own back."""
    if cores is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def beside_words(num_beside: int, num_cells: int) -> str:
    """The caution for tables of times."""
    return (
        f"{num_beside} of {num_cells} cells ran beside others, each on a share of the cores: "
        "their times do not compare with those of cells that ran alone"
    )
