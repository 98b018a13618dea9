"""The faults: how each is inflicted on a running training, how it shows, and how the run must end.

Each is one small function of a trial and of the command that runs it; it returns the command whose end
counts, which is another one where a user would have to resume. It must not know what is printed.
"""

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sbpipe.bench.faults import links
from sbpipe.bench.faults.subject import EVALUATING, NAN, NUM_EXAMPLES, SLOW_TESTS, SPIN, SWITCHED
from sbpipe.bench.faults.trial import Command, Trial
from sbpipe.runs.names.files import CHECKPOINTS
from sbpipe.weights.leftovers import SHARED_MEMORY

Inflict = Callable[[Trial, Command], Command]
OUTAGE_S = 6.0
"""How long what comes back is away: longer than the silence after which a peer is lost."""
GONE = r"lost|starting it again|ended with code"


@dataclass(frozen=True)
class Fault:
    """One fault; `says` is what the user must be told, "" where nothing is worth a word."""

    name: str
    inflict: Inflict
    says: str = ""
    code: int = 0
    changes: Mapping[str, Any] = field(default_factory=dict)
    begin: Callable[[Trial], Command] = Trial.run
    around: Sequence[str] = ()
    needs_root: bool = False
    is_quick: bool = False
    """Part of the tests."""
    must_cover: bool = True
    """Whether every candidate must have been considered when it ends: not where it must end early."""


def _killed(role: str, number: signal.Signals = signal.SIGKILL) -> Inflict:
    def inflict(trial: Trial, run: Command) -> Command:
        trial.begin_fault()
        os.kill(trial.pid(role), number)
        return run

    return inflict


def _stopped(role: str) -> Inflict:
    def inflict(trial: Trial, run: Command) -> Command:
        trial.begin_fault()
        pid = trial.pid(role)
        os.kill(pid, signal.SIGSTOP)
        time.sleep(OUTAGE_S)
        os.kill(pid, signal.SIGCONT)
        return run

    return inflict


def _slowed(trial: Trial, run: Command) -> Command:
    """A twentieth of its speed, until the end."""
    trial.begin_fault()
    pid = trial.pid("selector")
    with contextlib.suppress(ProcessLookupError):
        while run.poll() is None:
            os.kill(pid, signal.SIGSTOP)
            time.sleep(0.19)
            os.kill(pid, signal.SIGCONT)
            time.sleep(0.01)
    return run


def _switched(name: str) -> Inflict:
    def inflict(trial: Trial, run: Command) -> Command:
        trial.begin_fault()
        (trial.folder / name).touch()
        return run

    return inflict


def _spinning(trial: Trial, run: Command) -> Command:
    run = _switched(SPIN)(trial, run)
    trial.wait_for("a word about it", lambda: trial.noticed_s("without progress", trial.fault_at) is not None)
    (trial.folder / SPIN).unlink()
    return run


def _limited(role: str, which: int, used: Callable[[int], int]) -> Inflict:
    """Take away all that a process does not have yet of a resource."""

    def inflict(trial: Trial, run: Command) -> Command:
        trial.begin_fault()
        pid = trial.pid(role)
        limit = used(pid)
        resource.prlimit(pid, which, (limit, limit))
        return run

    return inflict


def _num_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir())) + 1


def _address_space(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()


def _killed_at_start(role: str) -> Inflict:
    def inflict(trial: Trial, run: Command) -> Command:
        pid = trial.pid(role)
        trial.fault_at = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        return run

    return inflict


def _killed_in_a_checkpoint(trial: Trial, run: Command) -> Command:
    trial.begin_fault()
    folder = trial.path / CHECKPOINTS
    pid = trial.pid("trainer")
    known = {entry.name for entry in folder.iterdir()} if folder.is_dir() else set()
    # Polled without a pause: a file that is being written is there for a few milliseconds.
    give_up = time.monotonic() + 60.0
    while {entry.name for entry in os.scandir(folder)} <= known and time.monotonic() < give_up:
        pass
    trial.fault_at = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    return run


def _killed_in_an_evaluation(trial: Trial, run: Command) -> Command:
    (trial.folder / SLOW_TESTS).touch()
    trial.wait_for("an evaluation", (trial.folder / EVALUATING).exists)
    trial.fault_at = time.monotonic()
    os.kill(trial.pid("trainer"), signal.SIGKILL)
    (trial.folder / SLOW_TESTS).unlink()
    return run


def _killed_at_the_end(role: str) -> Inflict:
    def inflict(trial: Trial, run: Command) -> Command:
        total = trial.wait_for("a start", lambda: trial.events("start"))[0]["total_candidates"]
        pid = trial.pid(role)
        trial.wait_for(
            "the last steps",
            lambda: (done := trial.events("step")) and done[-1]["candidates"] > total - NUM_EXAMPLES // 4,
        )
        trial.fault_at = time.monotonic()
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        return run

    return inflict


def _await_another(trial: Trial, before: int) -> None:
    trial.wait_for("another selector", lambda: set(trial.pids("selector")) - {before})


def _storm(trial: Trial, run: Command) -> Command:
    """Selectors that die as soon as they work, more often than a supervisor forgives at once."""
    trial.begin_fault()
    for _ in range(4):
        before = trial.pid("selector")
        os.kill(before, signal.SIGKILL)
        _await_another(trial, before)
    return run


def _ended_and_resumed(number: signal.Signals) -> Inflict:
    """The supervisor is ended; the user resumes."""

    def inflict(trial: Trial, run: Command) -> Command:
        trial.begin_fault()
        run.send_signal(number)
        run.wait(120.0)
        trial.wait_for_quiet()
        return trial.resume()

    return inflict


def _flipped_checkpoint(trial: Trial, run: Command) -> Command:
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


def _flipped_slots(trial: Trial, run: Command) -> Command:
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


def _vanished(trial: Trial, run: Command) -> Command:
    trial.begin_fault()
    shutil.rmtree(trial.path)
    return run


def _on_a_small_disk(trial: Trial) -> Command:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(trial.folder)], check=True)
    trial.on_close(lambda: subprocess.run(["umount", "-l", str(trial.folder)], check=True))
    return trial.run()


def _full(trial: Trial, run: Command) -> Command:
    trial.begin_fault()
    with contextlib.suppress(OSError), (trial.folder / "ballast").open("wb") as ballast:
        while True:
            ballast.write(bytes(1 << 16))
    return run


def _nothing(trial: Trial, run: Command) -> Command:
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


def _with_a_jumping_clock(trial: Trial) -> Command:
    """Every Python that starts reads its wall clock through a file."""
    folder = trial.folder / "clock"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(_JUMPING.format(path=str(trial.folder / "hours")))
    before = os.environ.get("PYTHONPATH", "")
    trial.environment["PYTHONPATH"] = f"{folder}:{before}" if before else str(folder)
    return trial.run()


def _clock_jumps(trial: Trial, run: Command) -> Command:
    trial.begin_fault()
    for hours in (3, -5):
        (trial.folder / "hours").write_text(str(hours))
        trial.wait_steps(20)
    return run


_TINY_MEMORY = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=64k t /dev/shm && exec "$@"', "sh")

FAULTS = [
    Fault("selector killed", _killed("selector"), GONE, is_quick=True),
    Fault("selector stopped for a while", _stopped("selector"), "silent"),
    Fault("selector spins", _spinning, "without progress", changes=SWITCHED),
    Fault("selector 20 x slower", _slowed),
    Fault("selector out of memory", _limited("selector", resource.RLIMIT_AS, _address_space), ""),
    Fault("selector out of file descriptors", _limited("selector", resource.RLIMIT_NOFILE, _num_files), ""),
    Fault("selector killed at its start", _killed_at_start("selector"), "starting it again"),
    Fault("selector killed at the end", _killed_at_the_end("selector"), ""),
    Fault("selector killed again and again", _storm, GONE),
    Fault("trainer killed", _killed("trainer"), GONE, is_quick=True),
    Fault("trainer stopped for a while", _stopped("trainer"), ""),
    Fault("trainer out of file descriptors", _limited("trainer", resource.RLIMIT_NOFILE, _num_files), ""),
    Fault("trainer out of memory", _limited("trainer", resource.RLIMIT_AS, _address_space), ""),
    Fault("trainer killed at its start", _killed_at_start("trainer"), GONE),
    Fault("trainer killed in a checkpoint", _killed_in_a_checkpoint, GONE, changes={"checkpoint.every": 20}),
    Fault(
        "trainer killed in an evaluation",
        _killed_in_an_evaluation,
        GONE,
        changes=SWITCHED | {"eval.every": 5.0},
    ),
    Fault("trainer killed at the end", _killed_at_the_end("trainer"), GONE),
    Fault("supervisor killed, run resumed", _ended_and_resumed(signal.SIGKILL)),
    Fault("Ctrl-C, run resumed", _ended_and_resumed(signal.SIGINT), "stopping", is_quick=True),
    Fault("newest checkpoint flipped, trainer killed", _flipped_checkpoint, "checkpoint", is_quick=True),
    Fault("weights flipped on their way", _flipped_slots),
    Fault(
        "disk full",
        _full,
        "no room left|No space",
        needs_root=True,
        code=4,
        must_cover=False,
        begin=_on_a_small_disk,
    ),
    Fault("run directory gone", _vanished, "is gone|No such", code=4, must_cover=False),
    Fault(
        "trainer may write no file",
        _limited("trainer", resource.RLIMIT_FSIZE, lambda pid: 0),
        GONE,
    ),
    Fault("tiny /dev/shm", _nothing, "", around=_TINY_MEMORY, needs_root=True),
    Fault("clock jumps by hours", _clock_jumps, begin=_with_a_jumping_clock),
    Fault("NaN in the data", _switched(NAN), "diverged", code=2, changes=SWITCHED, must_cover=False),
    Fault("weights blow up", _nothing, "diverged", code=2, changes={"optim.lr": 1e12}, must_cover=False),
    Fault("link cut for a while", links.cut(up=True, down=True), "silent|lost", begin=links.through_a_proxy),
    Fault("link cut one way", links.cut(up=True, down=False), "silent|lost", begin=links.through_a_proxy),
    Fault("link 100 ms late", links.late(0.1), begin=links.through_a_proxy),
    Fault("link stalls for a second now and then", links.stalling, begin=links.through_a_proxy),
    Fault("link resets every second", links.resetting, begin=links.through_a_proxy),
    Fault("link flips bits", links.flipping, begin=links.through_a_proxy),
]
