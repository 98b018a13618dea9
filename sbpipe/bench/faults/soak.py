"""`sbpipe bench soak`: one long training whose processes are killed or stopped again and again, at random.

At its end every candidate must have been considered exactly once in every epoch, and nothing may have grown:
memory, file descriptors, shared memory.
"""

import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from sbpipe.bench.faults.subject import NUM_EXAMPLES
from sbpipe.bench.faults.trial import HANG_S, OUTAGE_S, Command, Ending, Hung, Trial
from sbpipe.bench.faults.vitals import Vitals, growth_across, growth_within
from sbpipe.bench.rows import Row
from sbpipe.runs.checkpoints import steps_in
from sbpipe.runs.names.files import CHECKPOINTS
from sbpipe.weights.leftovers import SHARED_MEMORY

ROLES = ("trainer", "selector")
MOST_GROWTH = 0.02
STOPPED_SHARE = 0.2
"""Faults that stop a process for a while instead of killing it."""
_MAX_RESTARTS = "1000000"
_LOOK_S = 0.5
_SAY_S = 60.0
_TRIED_EPOCHS = 12
_SPARE = 1.1
"""The run is planned to last somewhat longer than it is disturbed."""


@dataclass(frozen=True)
class Plan:
    """How long a run is disturbed, how often, and how many epochs it has."""

    seconds: float
    every_s: float
    epochs: int
    seed: int = 0


@dataclass(frozen=True)
class Soaked:
    """What was seen of a run."""

    plan: Plan
    lasted_s: float
    faults: Counter[str]
    vitals: Vitals
    most_shared: int
    left_shared: int
    ending: Ending


def planned(minutes: float, every_s: float) -> Plan:
    """The epochs that this machine trains in that time, estimated by a short run."""
    with _trial(_TRIED_EPOCHS) as trial:
        trial.ending(trial.run())
        times = trial.step_times()
    epochs = _SPARE * 60.0 * minutes * _TRIED_EPOCHS / (times[-1] - times[0])
    return Plan(60.0 * minutes, every_s, max(2, round(epochs)))


def soak(plan: Plan) -> Soaked:
    """Run it, disturb it, and check what it leaves."""
    with _trial(plan.epochs) as trial:
        return _Soak(trial, plan).run()


@contextmanager
def _trial(epochs: int) -> Iterator[Trial]:
    with tempfile.TemporaryDirectory(prefix="sbpipe-soak-", ignore_cleanup_errors=True) as folder:
        trial = Trial(Path(folder), {"train.epochs": float(epochs)})
        try:
            yield trial
        finally:
            trial.close()


class _Soak:
    """One run under faults; looks at its processes twice a second."""

    def __init__(self, trial: Trial, plan: Plan) -> None:
        self._trial, self._plan = trial, plan
        self._random = random.Random(plan.seed)
        self._vitals = Vitals()
        self._faults: Counter[str] = Counter()
        self._stopped: list[tuple[float, int]] = []
        """When to continue which process."""
        self._shared: set[Path] = set()
        self._most_shared = 0

    def run(self) -> Soaked:
        """Disturb and watch until the end of the run."""
        run, began = self._trial.run("--max-restarts", _MAX_RESTARTS), time.monotonic()
        fault_at, say_at = began + self._plan.every_s, began + _SAY_S
        while run.poll() is None:
            now = time.monotonic()
            self._look(run)
            self._continue(now)
            if now >= fault_at and now - began < self._plan.seconds:
                fault_at = now + self._plan.every_s
                self._strike(now)
            if now >= say_at:
                say_at += _SAY_S
                self._say(now - began)
            self._refuse_to_hang(now - began)
            time.sleep(_LOOK_S)
        ending = self._trial.ending(run)
        return Soaked(
            self._plan,
            time.monotonic() - began,
            self._faults,
            self._vitals,
            self._most_shared,
            len(self._shared_now()),
            ending,
        )

    def _look(self, run: Command) -> None:
        self._vitals.note("supervisor", run.pid)
        for role in ROLES:
            for pid in self._trial.pids(role):
                self._vitals.note(role, pid)
                self._shared |= _shared_by(pid)
        self._most_shared = max(self._most_shared, len(self._shared_now()))

    def _shared_now(self) -> list[Path]:
        return [path for path in self._shared if path.exists()]

    def _strike(self, now: float) -> None:
        role = self._random.choice(ROLES)
        is_stop = self._random.random() < STOPPED_SHARE
        pid = next(iter(self._trial.pids(role)), 0)
        if not pid:
            return
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP if is_stop else signal.SIGKILL)
            self._faults[f"{role} {'stopped' if is_stop else 'killed'}"] += 1
            if is_stop:
                self._stopped.append((now + OUTAGE_S, pid))

    def _continue(self, now: float) -> None:
        for due in [entry for entry in self._stopped if entry[0] <= now]:
            self._stopped.remove(due)
            with suppress(ProcessLookupError):
                os.kill(due[1], signal.SIGCONT)

    def _step(self) -> int:
        return max(steps_in(self._trial.path / CHECKPOINTS), default=0)

    def _refuse_to_hang(self, lasted_s: float) -> None:
        # While it is disturbed it trains less than planned.
        if lasted_s > 4 * self._plan.seconds + HANG_S:
            raise Hung(f"the run did not end within {lasted_s:.0f} s:\n{self._trial.words}")

    def _say(self, lasted_s: float) -> None:
        held = ", ".join(
            f"{role} {lives[-1].at_its_end().rss_mb:.0f} MB and {lives[-1].at_its_end().num_files} files"
            for role in (*ROLES, "supervisor")
            if (lives := self._vitals.of(role))
        )
        sys.stderr.write(
            f"  minute {lasted_s / 60:.0f}: step {self._step():,}, {self._faults.total()} faults, "
            f"{held}, {len(self._shared_now())} files of shared memory\n"
        )
        sys.stderr.flush()


def _shared_by(pid: int) -> set[Path]:
    """What a process has mapped of shared memory."""
    try:
        words = Path(f"/proc/{pid}/maps").read_text().split()
    except OSError:
        return set()
    return {Path(word) for word in words if word.startswith(f"{SHARED_MEMORY}/")}


def rows_of(soaked: Soaked) -> list[Row]:
    """The numbers and their bars; growth is left out where too few processes lived long enough."""
    ending, supervisor = soaked.ending, growth_within(soaked.vitals.of("supervisor"))
    rows = [
        Row("soak", "lasted", soaked.lasted_s / 60, "minutes"),
        *(Row("soak", what, count, "times") for what, count in sorted(soaked.faults.items())),
        Row("soak", "exit code", ending.code, "", at_most=0),
        Row("soak", "epochs", soaked.plan.epochs, ""),
        Row("soak", "candidates lost", _or_all(ending.lost, soaked), "", at_most=0),
        Row("soak", "candidates considered twice", _or_all(ending.twice, soaked), "", at_most=0),
        Row("soak", "shared memory, most at once", soaked.most_shared, "files"),
        Row("soak", "shared memory, left at the end", soaked.left_shared, "files", at_most=0),
    ]
    if supervisor is not None:
        rows += [_growth("supervisor, all its life", supervisor[0])]
    for role in ROLES:
        rows += _of_role(role, soaked.vitals)
    return rows


def _of_role(role: str, vitals: Vitals) -> Iterator[Row]:
    lives = vitals.of(role)
    across, within = growth_across(lives), growth_within(lives)
    if across is not None:
        yield _growth(f"{role}, last third of its processes against the first", across[0])
        yield Row("soak", f"files of the {role}, the same", across[1], "more", at_most=0)
    if within is not None:
        yield _growth(f"{role}, within its longest life ({within[1]:.0f} s)", within[0])


def _growth(what: str, share: float) -> Row:
    return Row("soak", f"memory of the {what}", 100 * share, "% more", at_most=100 * MOST_GROWTH)


def _or_all(count: int | None, soaked: Soaked) -> int:
    """An unknown number counts as all of them."""
    return soaked.plan.epochs * NUM_EXAMPLES if count is None else count


def verdict(soaked: Soaked, rows: list[Row]) -> str:
    """One sentence."""
    what = ", ".join(f"{count} x {name}" for name, count in sorted(soaked.faults.items())) or "no fault"
    head = f"{soaked.lasted_s / 60:.1f} minutes, {what}: "
    missed = [f"{row.what} {row.value:.3g} {row.unit}".strip() for row in rows if row.is_met is False]
    if missed:
        return f"{head}NOT as it must be: {'; '.join(missed)}"
    growth = [row.value for row in rows if row.unit == "% more"]
    grown = (
        f"no memory grew by more than {max(0.0, *growth):.1f} %" if growth else "too short to compare memory"
    )
    return (
        f"{head}each of {NUM_EXAMPLES:,} candidates was considered exactly once in each of "
        f"{soaked.plan.epochs:,} epochs; {grown}, and nothing is left behind"
    )
