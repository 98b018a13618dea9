"""What a role does to its process before it computes."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from sbpipe.config import Config, resolve
from sbpipe.machine import cores
from sbpipe.machine.beside import cores_left

_FAULTS = """
import resource
import numpy as np
from sbpipe.machine import cores
{keep}
counts = []
for _ in range(4):
    np.ones(5_000_000)
    counts.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
print(counts[-1] - counts[0])
"""


def faults(keep: str, **environment: str) -> int:
    """Pages mapped anew by blocks of 40 MB that are freed and wanted again."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    clean["NUMPY_MADVISE_HUGEPAGE"] = "0"  # how many huge pages there are depends on who else is running
    command = [sys.executable, "-c", _FAULTS.format(keep=keep)]
    return int(
        subprocess.run(command, env=clean | environment, check=True, capture_output=True, text=True).stdout
    )


def test_freed_memory_stays_with_the_process_unless_the_environment_says_otherwise() -> None:
    plain, kept = faults(""), faults("cores.keep_memory()")
    assert kept < plain / 10
    assert faults("cores.keep_memory()", MALLOC_MMAP_THRESHOLD_="1000000") > plain / 2


@pytest.mark.parametrize(
    ("number", "workers", "kept"),
    [(1, 2, 1), (2, 2, 1), (4, 2, 2), (8, 0, 6), (16, 2, 12), (16, 12, 8)],
)
def test_a_selector_beside_an_accelerator_leaves_the_cores_that_feed_it(
    number: int, workers: int, kept: int
) -> None:
    available = list(range(number))
    assert cores.beside_accelerator(workers, available) == available[number - kept :]


def one_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that shows the driver of one, so that `auto` is decided late."""
    monkeypatch.setattr(cores, "may_have_accelerator", lambda: True)


def test_only_a_selector_that_auto_puts_on_the_cpu_beside_an_accelerator_is_given_what_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one_accelerator(monkeypatch)
    left = cores.beside_accelerator(Config().data.workers)
    assert cores_left(Config(), "cuda:0", "cpu") == left
    assert cores_left(Config(), "cuda:0", "cuda:1") is None
    assert cores_left(Config(), "cpu", "cpu") is None  # a driver without its device: both as before
    for given in ({"selector.device": "cpu"}, {"selector.threads": 1}):
        assert cores_left(resolve(given), "cuda:0", "cpu") is None  # pinned before torch was imported


_KEEPS = """
import logging, os, threading
import torch
from sbpipe.config import Config
from sbpipe.machine import cores, devices
from sbpipe.machine.beside import keep_to_what_is_left
cores.may_have_accelerator = lambda: True
logging.basicConfig(level=logging.INFO, format="%(message)s")
stop = threading.Event()
thread = threading.Thread(target=stop.wait)
thread.start()
wanted = cores.beside_accelerator(Config().data.workers)
keep_to_what_is_left(Config(), "cuda:0", "cpu", is_guest=True)
devices.use(torch.device("cpu"))
print(all(sorted(os.sched_getaffinity(tid)) == wanted for tid in (0, thread.native_id)))
print(torch.get_num_threads() == len(wanted), os.nice(0))
stop.set()
"""


def test_such_a_selector_is_pinned_with_all_its_threads_after_torch_was_imported() -> None:
    done = subprocess.run([sys.executable, "-c", _KEEPS], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["True", "True", "19"]
    assert "the trainer has cuda:0, the only accelerator, so candidates are scored on the CPU" in done.stderr


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one core")
def test_threads_that_do_not_compute_start_on_the_cores_that_are_left() -> None:
    first, *rest = sorted(os.sched_getaffinity(0))
    own = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {first})
        with cores.SpareCores(rest).for_threads():
            spared = affinity_of_a_thread()
        assert (spared, os.sched_getaffinity(0)) == (set(rest), {first})
        with cores.NO_SPARE_CORES.for_threads():
            assert affinity_of_a_thread() == {first}
    finally:
        os.sched_setaffinity(0, own)


def affinity_of_a_thread() -> set[int]:
    """The cores of a thread that is started now."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(os.sched_getaffinity, 0).result()
