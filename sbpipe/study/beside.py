"""Cells side by side: which ones may, and on which cores. Knows neither plans nor processes.

What a run on a logical clock computes does not depend on how fast it is, so several of them may share a machine. A run in which arrival
or time decides what is trained, or whose speed is what is asked for, has the machine to itself.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from sbpipe.config import Config
from sbpipe.errors import ConfigError


def runs_alone(config: Config) -> bool:
    """Whether a run must have the machine to itself."""
    return not config.is_clocked or config.mode == "data-parallel" or bool(config.train.seconds)


def core_shares(cores: Sequence[int], jobs: int) -> list[list[int]]:
    """The cores in so many parts, neighbours together, the first ones larger by one core where it does not come out even."""
    ordered = sorted(cores)
    sizes = [len(ordered) // jobs + (k < len(ordered) % jobs) for k in range(jobs)]
    return [ordered[sum(sizes[:k]) : sum(sizes[: k + 1])] for k in range(jobs)]


def refuse_jobs(jobs: int, num_cores: int) -> None:
    """Every cell that runs beside others needs a core of its own."""
    if jobs < 1:
        raise ConfigError("--jobs", jobs, "is not a number of cells at a time", "Write --jobs 1 or more")
    if jobs > num_cores:
        have = f"there {'is' if num_cores == 1 else 'are'} {num_cores} core{'' if num_cores == 1 else 's'}"
        raise ConfigError("--jobs", jobs, f"{have}, and each cell needs one of its own", f"Write at most --jobs {num_cores}")


@contextmanager
def on_cores(cores: Sequence[int] | None) -> Iterator[None]:
    """What is started here computes on these cores, we ourselves do not stay there; None: on all of them."""
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
    """The caution that tables of times stand under."""
    return (
        f"{num_beside} of {num_cells} cells ran beside others, each on a share of the cores: "
        "their times do not compare with those of cells that ran alone"
    )
