"""What a role does to its process before it computes."""

import os
import subprocess
import sys

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
