"""`sbpipe bench lockstep`: runs in lockstep, each with one process killed at a random step.

They must end with the weights of a run that nobody disturbed, bit for bit.
"""

import os
import random
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sbpipe.bench.faults.trial import Command, Trial
from sbpipe.bench.rows import Row

ROLES = ("trainer", "selector")
JOB = {"mode": "lockstep", "train.epochs": 12.0, "checkpoint.every": 40}


@dataclass(frozen=True)
class Kill:
    """Which role is killed, and after which step; 0: as soon as its process is there."""

    role: str
    step: int


@dataclass(frozen=True)
class Outcome:
    """How a run ended; a digest of "" means that it left none."""

    code: int
    steps: int
    digest: str
    lost: int | None
    twice: int | None


def undisturbed() -> Outcome:
    """The run that the others are compared with."""
    with _trial() as trial:
        return _outcome(trial, trial.run())


def disturbed(kill: Kill) -> Outcome:
    """The same run, one of its processes killed."""
    with _trial() as trial:
        run = trial.run()
        if kill.step:
            trial.wait_for(f"step {kill.step}", lambda: len(trial.step_times()) >= kill.step)
        os.kill(trial.pid(kill.role), signal.SIGKILL)
        return _outcome(trial, run)


def measure_lockstep(count: int, seed: int = 0) -> list[Row]:
    """So many runs, and how many of them ended as they must."""
    reference = undisturbed()
    sys.stderr.write(f"  undisturbed: {reference.steps} steps, weights {reference.digest[:16]}\n")
    drawn = random.Random(seed)
    num_same = 0
    for number in range(count):
        kill = Kill(drawn.choice(ROLES), drawn.randrange(reference.steps))
        outcome = disturbed(kill)
        num_same += outcome == reference
        words = "the same weights" if outcome == reference else f"NOT the same: {outcome}"
        sys.stderr.write(f"  {number + 1}: {kill.role} killed at step {kill.step}: {words}\n")
    return [
        Row("lockstep", "steps of a run", reference.steps, ""),
        Row("lockstep", f"same weights, of {count} runs killed", num_same, "", at_least=count),
    ]


@contextmanager
def _trial() -> Iterator[Trial]:
    with tempfile.TemporaryDirectory(prefix="sbpipe-lockstep-", ignore_cleanup_errors=True) as folder:
        trial = Trial(Path(folder), JOB)
        try:
            yield trial
        finally:
            trial.close()


def _outcome(trial: Trial, run: Command) -> Outcome:
    ending, summary = trial.ending(run), trial.summary()
    steps, digest = int(summary.get("steps", 0)), str(summary.get("weights.digest", ""))
    return Outcome(ending.code, steps, digest, ending.lost, ending.twice)
