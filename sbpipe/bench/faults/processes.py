"""Faults of processes: killed, stopped, slowed, spinning, or at the end of what they may have."""

import contextlib
import itertools
import os
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path

from sbpipe.bench.faults.fault import Inflict
from sbpipe.bench.faults.subject import EVALUATING, NUM_EXAMPLES, SLOW_TESTS, SPIN
from sbpipe.bench.faults.trial import HANG_S, OUTAGE_S, Command, Hung, Trial
from sbpipe.runs.names.files import CHECKPOINTS

NO_FILES = "Too many open files"


def killed(role: str, number: signal.Signals = signal.SIGKILL) -> Inflict:
    """Once a selector has worked for a while."""

    def inflict(trial: Trial, run: Command) -> Command:
        trial.begin_fault()
        os.kill(trial.pid(role), number)
        return run

    return inflict


def stopped(role: str) -> Inflict:
    """Stopped for a while, then continued."""

    def inflict(trial: Trial, run: Command) -> Command:
        trial.begin_fault()
        pid = trial.pid(role)
        os.kill(pid, signal.SIGSTOP)
        time.sleep(OUTAGE_S)
        os.kill(pid, signal.SIGCONT)
        return run

    return inflict


def slowed(trial: Trial, run: Command) -> Command:
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


def switched(name: str) -> Inflict:
    """Turn on a switch of the data set."""

    def inflict(trial: Trial, run: Command) -> Command:
        trial.begin_fault()
        (trial.folder / name).touch()
        return run

    return inflict


def spinning(trial: Trial, run: Command) -> Command:
    """It sends heartbeats, but no answers, until that is reported."""
    run = switched(SPIN)(trial, run)
    trial.wait_for("a word about it", lambda: trial.noticed_s("without progress", trial.fault_at) is not None)
    (trial.folder / SPIN).unlink()
    return run


def limited(role: str, which: int, used: Callable[[int], int]) -> Inflict:
    """Limit a resource of a process to what it has now."""

    def inflict(trial: Trial, run: Command) -> Command:
        trial.begin_fault()
        _limit(trial.pid(role), which, used)
        return run

    return inflict


def out_of_files_for_a_while(trial: Trial, run: Command) -> Command:
    """No further file descriptor for the trainer, until that is reported."""
    trial.begin_fault()
    pid = trial.pid("trainer")
    before = _limit(pid, resource.RLIMIT_NOFILE, next_file)
    trial.wait_for("a word about it", lambda: trial.noticed_s(NO_FILES, trial.fault_at) is not None)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
    return run


def limited_at_start(role: str, which: int, used: Callable[[int], int]) -> Inflict:
    """The same for a process that has just begun, and has hardly any yet."""

    def inflict(trial: Trial, run: Command) -> Command:
        pid = trial.pid(role)
        trial.fault_at = time.monotonic()
        _limit(pid, which, used)
        return run

    return inflict


def _limit(pid: int, which: int, used: Callable[[int], int]) -> tuple[int, int]:
    """What the limit was before."""
    _, hard = before = resource.prlimit(pid, which)
    resource.prlimit(pid, which, (used(pid), hard))
    return before


def next_file(pid: int) -> int:
    """The number that the next file descriptor of a process would have."""
    taken = {int(entry.name) for entry in Path(f"/proc/{pid}/fd").iterdir()}
    return next(number for number in itertools.count() if number not in taken)


def little_memory(pid: int) -> int:
    """Bytes of address space that are enough for Python to start, but not to load torch."""
    return 512 << 20


def killed_at_start(role: str) -> Inflict:
    """Kill it as soon as its process exists."""

    def inflict(trial: Trial, run: Command) -> Command:
        pid = trial.pid(role)
        trial.fault_at = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        return run

    return inflict


def killed_in_a_checkpoint(trial: Trial, run: Command) -> Command:
    """While a file that is not a whole checkpoint yet lies in the folder."""
    trial.begin_fault()
    folder, pid = trial.path / CHECKPOINTS, trial.pid("trainer")
    give_up = time.monotonic() + HANG_S
    # Polled without a pause, because it exists for a few milliseconds only.
    while not any(entry.name.startswith(".step-") for entry in os.scandir(folder)):
        if time.monotonic() > give_up:
            raise Hung("no checkpoint was being written")
    trial.fault_at = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    return run


def killed_in_an_evaluation(trial: Trial, run: Command) -> Command:
    """While it looks at test examples."""
    (trial.folder / SLOW_TESTS).touch()
    trial.wait_for("an evaluation", (trial.folder / EVALUATING).exists)
    trial.fault_at = time.monotonic()
    os.kill(trial.pid("trainer"), signal.SIGKILL)
    (trial.folder / SLOW_TESTS).unlink()
    return run


def killed_at_the_end(role: str) -> Inflict:
    """In the last steps, or while it writes its summary."""

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


def storm(trial: Trial, run: Command) -> Command:
    """Selectors that die as soon as they work, more often than a supervisor allows in a row."""
    trial.begin_fault()
    for _ in range(4):
        before = trial.pid("selector")
        os.kill(before, signal.SIGKILL)
        _await_another(trial, before)
    return run


def ended_and_resumed(number: signal.Signals) -> Inflict:
    """The supervisor is ended; the user resumes."""

    def inflict(trial: Trial, run: Command) -> Command:
        trial.begin_fault()
        run.send_signal(number)
        run.wait(120.0)
        trial.wait_for_quiet()
        return trial.resume()

    return inflict
