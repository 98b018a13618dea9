"""Faults of a run's surroundings: its checkpoints, shared memory, directory, disk and clock."""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

from sbpipe.bench.faults.trial import Command, Trial
from sbpipe.runs.names.files import CHECKPOINTS
from sbpipe.weights.leftovers import SHARED_MEMORY


def flipped_checkpoint(trial: Trial, run: Command) -> Command:
    """One bit of the newest, and a trainer that has to be started from it."""
    trial.begin_fault()
    trial.wait_for("two checkpoints", lambda: len(_checkpoints(trial)) >= 2)
    os.kill(trial.pid("trainer"), signal.SIGSTOP)
    newest = max(_checkpoints(trial), key=lambda path: path.stat().st_mtime)
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 0x10
    newest.write_bytes(content)
    trial.fault_at = time.monotonic()
    os.kill(trial.pid("trainer"), signal.SIGKILL)
    return run


def _checkpoints(trial: Trial) -> list[Path]:
    folder = trial.path / CHECKPOINTS
    return [entry for entry in folder.iterdir() if entry.suffix == ".pt"] if folder.is_dir() else []


def flipped_slots(trial: Trial, run: Command) -> Command:
    """Bits of the weights on their way to the selector: scores are wrong until the next publish."""
    trial.begin_fault()
    maps = Path(f"/proc/{trial.pid('trainer')}/maps").read_text()
    path = next(word for word in maps.split() if word.startswith(f"{SHARED_MEMORY}/"))
    with open(path, "r+b") as memory:
        size = os.fstat(memory.fileno()).st_size
        for at in range(8192, size, size // 64):
            memory.seek(at)
            byte = memory.read(1)
            memory.seek(at)
            memory.write(bytes([byte[0] ^ 0x10]))
    return run


def vanished(trial: Trial, run: Command) -> Command:
    """The run directory is removed."""
    trial.begin_fault()
    shutil.rmtree(trial.path)
    return run


def on_a_small_disk(trial: Trial) -> Command:
    """Start the run on a disk of its own."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(trial.folder)], check=True)
    trial.on_close(lambda: subprocess.run(["umount", "-l", str(trial.folder)], check=True))
    return trial.run()


def full(trial: Trial, run: Command) -> Command:
    """Fill its disk."""
    trial.begin_fault()
    with contextlib.suppress(OSError), (trial.folder / "ballast").open("wb") as ballast:
        while True:
            ballast.write(bytes(1 << 16))
    return run


def nothing(trial: Trial, run: Command) -> Command:
    """A fault that is there from the beginning."""
    trial.fault_at = time.monotonic()
    return run


_JUMPING = """
import time
real = time.time
def jumping():
    try:
        return real() + 3600.0 * float(open({path!r}).read())
    except (OSError, ValueError):
        return real()
time.time = jumping
"""


def with_a_jumping_clock(trial: Trial) -> Command:
    """Every Python that starts reads its wall clock through a file."""
    folder = trial.folder / "clock"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(_JUMPING.format(path=str(trial.folder / "hours")))
    before = os.environ.get("PYTHONPATH", "")
    trial.environment["PYTHONPATH"] = f"{folder}:{before}" if before else str(folder)
    return trial.run()


def clock_jumps(trial: Trial, run: Command) -> Command:
    """The wall clock jumps ahead, and back."""
    trial.begin_fault()
    for hours in (3, -5):
        (trial.folder / "hours").write_text(str(hours))
        trial.wait_steps(20)
    return run
