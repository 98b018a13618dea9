"""Runs that a stranger attacks, window by window in turn with the control; rates and rows with bars."""

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sbpipe.bench.faults.trial import HANG_S, Command, Trial
from sbpipe.bench.faults.vitals import Vitals
from sbpipe.bench.rows import Row
from sbpipe.bench.stranger.decoy import private_copy
from sbpipe.bench.stranger.target import Target, Tried
from sbpipe.errors import ConfigError
from sbpipe.link.addresses import parse
from sbpipe.link.connection import read_connection
from sbpipe.runs.names.files import FILES, SELECTOR_KEY
from sbpipe.weights.leftovers import PREFIX, SHARED_MEMORY

RATE = 1750.0
"""Attempts a second: a million in ten minutes."""
LEAST_RATE = 0.95
LONGEST_WINDOW_S = 30.0
SETTLING = 500
"""Steps before the first window."""
_LOOK_S = 0.5
_ENDLESS = {"train.epochs": 1e6}
_SHARES = {"socket": 0.2, "tcp": 0.8}
"""Of the time, by how the run is reached."""
_BINDS = {"socket": "auto", "tcp": "tcp://127.0.0.1:0"}


@dataclass(frozen=True)
class Schedule:
    """Windows in turn: of the run, of the control, of the run, ..."""

    window_s: float
    count: int

    @classmethod
    def of(cls, seconds: float) -> "Schedule":
        """So many seconds of the run, and as many of the control; at least two of each."""
        pairs = max(2, round(seconds / LONGEST_WINDOW_S))
        return cls(seconds / pairs, 2 * pairs)


@dataclass(frozen=True)
class Seen:
    """What was seen of one run."""

    how: str
    ratios: list[float]
    tried: Tried
    control: Tried
    vitals: Vitals
    files_before: int
    files_after: int
    num_selectors: int
    num_trainers: int
    code: int


def measure_stranger(minutes: float) -> list[Row]:
    """A run over its default socket, and one over TCP with keys."""
    if os.geteuid() != 0:
        raise ConfigError(
            "bench", "stranger", "only root can become another user", "Run it as root, for instance with sudo"
        )
    rows = []
    for how, share in _SHARES.items():
        schedule = Schedule.of(60.0 * minutes * share)
        sys.stderr.write(f"  {how}: {schedule.count} windows of {schedule.window_s:.0f} s ...\n")
        rows += rows_of(_watched(how, schedule))
    return rows


def _watched(how: str, schedule: Schedule) -> Seen:
    with tempfile.TemporaryDirectory(prefix="sbpipe-stranger-", ignore_cleanup_errors=True) as folder:
        # Others may enter it: what keeps them out of the run must be the run's own.
        Path(folder).chmod(0o755)
        trial = Trial(Path(folder), _ENDLESS | {"link.bind": _BINDS[how]})
        try:
            return _Watch(how, trial, schedule).run()
        finally:
            trial.close()


class _Watch:
    """One run, one stranger."""

    def __init__(self, how: str, trial: Trial, schedule: Schedule) -> None:
        self._how, self._trial, self._schedule = how, trial, schedule
        self._vitals, self._trainers = Vitals(), set[int]()

    def run(self) -> Seen:
        trial, run = self._trial, self._trial.run()
        trial.begin_fault()
        # A selector measures itself in its first seconds, and the keep rate settles.
        trial.wait_steps(SETTLING)
        files_before = self._look()
        with _control(self._how, self._target(), trial.folder) as control:
            stranger = self._start(control)
            while stranger.poll() is None:
                self._look()
                time.sleep(_LOOK_S)
        assert stranger.stdout is not None
        told = json.loads(stranger.stdout.read())
        tried, of_control = (Tried(**found) for found in told["tried"])
        files_after = self._files_at_last(files_before)
        code = _end(run)
        states = [event for event in trial.events("selector") if event["state"] == "ready"]
        return Seen(
            self._how,
            ratios(self._steps(), told["began"], self._schedule),
            tried,
            of_control,
            self._vitals,
            files_before,
            files_after,
            len({event["selector"] for event in states}),
            len(self._trainers),
            code,
        )

    def _target(self) -> Target:
        trial, connection = self._trial, read_connection(self._trial.path)
        if self._how == "tcp":
            return Target(ports=tuple(parse("link.bind", at).port for at in connection.endpoints))
        sockets = tuple(at.removeprefix("ipc://") for at in connection.endpoints)
        names = [name for name in (*FILES, SELECTOR_KEY) if (trial.path / name).is_file()]
        memory = [str(path) for path in SHARED_MEMORY.glob(f"{PREFIX}*")]
        return Target(
            folders=(str(trial.path), str(trial.path / "checkpoints"), str(Path(sockets[0]).parent)),
            files=(*(str(trial.path / name) for name in names), *memory),
            sockets=sockets,
            pids=(trial.pid("trainer"), trial.pid("selector")),
        )

    def _start(self, control: Target) -> "subprocess.Popen[str]":
        schedule = self._schedule
        numbers = (schedule.window_s, schedule.count, RATE)
        command = [sys.executable, "-m", "sbpipe.bench.stranger.attacker", *map(str, numbers)]
        targets = [self._target().to_json(), control.to_json()]
        return subprocess.Popen([*command, *targets], stdout=subprocess.PIPE, text=True)

    def _look(self) -> int:
        """Files of the trainer."""
        for pid in self._trial.pids("trainer"):
            self._trainers.add(pid)
            self._vitals.note("trainer", pid)
        return self._vitals.of("trainer")[-1].readings[-1].num_files

    def _files_at_last(self, before: int) -> int:
        """Once the connections that were left open are gone, or there was time enough for that."""
        give_up = time.monotonic() + 30.0
        while (files := self._look()) > before and time.monotonic() < give_up:
            time.sleep(_LOOK_S)
        return files

    def _steps(self) -> list[tuple[float, int]]:
        events: list[dict[str, Any]] = [*self._trial.events("step"), *self._trial.events("steps")]
        return sorted((float(event["clock"]), int(event["step"])) for event in events)


@contextmanager
def _control(how: str, target: Target, folder: Path) -> Iterator[Target]:
    if how == "socket":
        yield private_copy(target, folder)
        return
    command = [sys.executable, "-m", "sbpipe.bench.stranger.decoy"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as decoy:
        assert decoy.stdout is not None
        try:
            yield Target(ports=tuple(int(port) for port in decoy.stdout.readline().split()))
        finally:
            decoy.kill()


def _end(run: Command) -> int:
    run.send_signal(signal.SIGINT)
    return run.wait(HANG_S)


def ratios(steps: Sequence[tuple[float, int]], begin: float, schedule: Schedule) -> list[float]:
    """The trainer's rate in each window of the run against that in the window of the control after it."""
    clocks, counts = (np.array(column, float) for column in zip(*steps, strict=True))
    edges = begin + schedule.window_s * np.arange(schedule.count + 1)
    rates = np.diff(np.interp(edges, clocks, counts))
    return [float(ours / other) for ours, other in zip(rates[::2], rates[1::2], strict=True)]


def rows_of(seen: Seen) -> list[Row]:
    """The numbers and their bars."""
    name, tried = f"over its {seen.how}" if seen.how == "socket" else "over TCP", seen.tried
    life = seen.vitals.of("trainer")[-1]
    sys.stderr.write(f"  {name}, rates: {', '.join(f'{ratio:.3f}' for ratio in seen.ratios)}\n")
    values: list[tuple[str, float, str, dict[str, float]]] = [
        ("attempts", tried.messages, "", {}),
        ("attempts on the control beside it", seen.control.messages, "", {}),
        ("connections", tried.connections, "", {}),
        ("stranger's processor time", tried.cpu_s, "s", {}),
        ("the same on the control", seen.control.cpu_s, "s", {}),
        ("rate against the control", statistics.median(seen.ratios), "", {"at_least": LEAST_RATE}),
        ("reached: listed, opened, connected, signalled", tried.reached, "", {"at_most": 0}),
        ("bytes got beyond a greeting", tried.leaked_bytes, "", {"at_most": 0}),
        ("selectors let in", seen.num_selectors, "", {"at_most": 1}),
        ("trainers that it took", seen.num_trainers, "", {"at_most": 1}),
        ("exit code after Ctrl-C, more or less than 130", abs(seen.code - 130), "", {"at_most": 0}),
        ("memory of the trainer, most", max(one.rss_mb for one in life.readings), "MB", {}),
        ("memory of the trainer, before", life.readings[0].rss_mb, "MB", {}),
        ("files of the trainer, most", max(one.num_files for one in life.readings), "", {}),
        ("files of the trainer, more than before", seen.files_after - seen.files_before, "", {"at_most": 0}),
    ]
    return [Row("stranger", f"{name}: {what}", value, unit, **bar) for what, value, unit, bar in values]
