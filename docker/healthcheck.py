#!/usr/bin/env python3
"""Is the role in this container well? `sbpipe-health trainer|selector` says why, and exits with 0 (yes) or 1.

It looks at what a role leaves behind: its process in /proc, and in the run directory /runs/$SBPIPE_RUN its
connection.json and its events. It asks nobody and imports neither torch nor sbpipe, so it costs a few
hundredths of a second and cannot hang with what it watches.

    trainer    runs, and has said since its start where it listens. Its events are at most MAX_AGE_S old,
               unless it waits for a selector: it says nothing then, and gives up after link.wait_s.
    selector   runs. Its answers are at most MAX_AGE_S old, unless the trainer is quiet too, because it is
               down, waits or evaluates: then nothing was asked. A trainer that goes on alone, by
               selection.fallback, shows up here as a sick selector.

MAX_AGE_S is $SBPIPE_HEALTH_MAX_AGE_S, 60 by default; longer than an evaluation or a checkpoint takes.
"""

import json
import os
import platform
import sys
import time
from dataclasses import dataclass
from pathlib import Path

TAIL_BYTES = 1 << 16
STATES = {"T": "stopped", "t": "being traced", "Z": "dead", "X": "dead"}
NEWS_OF_TRAINING = ("start", "resumed", "selector", "step", "steps", "progress", "eval", "summary", "failed")


@dataclass(frozen=True)
class Process:
    """The role's process; `fault` is empty while it can run."""

    pid: int
    fault: str
    age_s: float


@dataclass(frozen=True)
class Verdict:
    """Well or not, and why."""

    is_well: bool
    reason: str


# --- deciding -----------------------------------------------------------------------------------------------


def judge_trainer(
    process: Process, connection_age_s: float, events_age_s: float, *, is_waiting: bool, max_age_s: float
) -> Verdict:
    """The trainer's state; an age is infinite where there is no file."""
    if connection_age_s > process.age_s:
        return Verdict(False, f"not listening yet, {process.age_s:.0f} s after its start")
    if events_age_s <= max_age_s:
        return Verdict(True, f"last event {events_age_s:.1f} s ago")
    if is_waiting:
        return Verdict(True, f"waiting for a selector, {events_age_s:.0f} s by now")
    return Verdict(False, f"no event for {events_age_s:.0f} s")


def judge_selector(
    process: Process, answer_age_s: float, trainer_age_s: float, *, max_age_s: float
) -> Verdict:
    """The selector's state; an age is infinite where there is no file."""
    quiet_s = min(answer_age_s, process.age_s)
    if quiet_s <= max_age_s:
        return Verdict(True, f"quiet for {quiet_s:.1f} s")
    if trainer_age_s > max_age_s:
        return Verdict(True, "the trainer asks for nothing")
    return Verdict(False, f"no answer for {quiet_s:.0f} s while the trainer goes on")


def is_waiting_for_selector(events: list[dict[str, object]]) -> bool:
    """Whether the last news is that the trainer started, or that a selector went."""
    news = [event for event in events if event.get("kind") in NEWS_OF_TRAINING]
    if not news:
        return False
    return news[-1]["kind"] in ("start", "resumed") or news[-1].get("state") in ("lost", "left", "rejected")


# --- looking ------------------------------------------------------------------------------------------------


def find_process(role: str) -> Process | None:
    """The process `sbpipe ROLE`; of several, the first, because loaders are its children and look alike."""
    for pid in sorted(int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
            if (os.path.basename(words[1]), words[2]) == ("sbpipe", role):
                return _process(pid, Path(f"/proc/{pid}/stat").read_text())
        except (OSError, IndexError):
            continue
    return None


def _process(pid: int, stat: str) -> Process:
    """From /proc/PID/stat: behind the name in brackets the state (field 3) and the start in ticks (22)."""
    fields = stat.rpartition(")")[2].split()
    started_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return Process(pid, STATES.get(fields[0], ""), time.clock_gettime(time.CLOCK_BOOTTIME) - started_s)


def age_of(path: Path) -> float:
    """Seconds since the file was written to; infinite if it is not there."""
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return float("inf")


def age_of_newest(run: Path, name: str) -> float:
    """Seconds since a role wrote events; a long run writes mostly to its recent file."""
    files = (path for kind in ("events", "recent") for path in run.glob(f"{kind}-{name}"))
    return min(map(age_of, files), default=float("inf"))


def last_events(path: Path) -> list[dict[str, object]]:
    """The events at the end of the file; lines that are cut are passed over."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return []
    events = []
    for line in lines:
        try:
            events.append(json.loads(line))
        except ValueError:
            continue
    return [event for event in events if isinstance(event, dict)]


def check(role: str, run: Path, max_age_s: float) -> Verdict:
    """Look, then decide."""
    process = find_process(role)
    if process is None:
        return Verdict(False, f"there is no process `sbpipe {role}`")
    if process.fault:
        return Verdict(False, f"process {process.pid} is {process.fault}")
    trainer_age_s = age_of_newest(run, "trainer.jsonl")
    if role == "trainer":
        is_waiting = is_waiting_for_selector(last_events(run / "events-trainer.jsonl"))
        ages = age_of(run / "connection.json"), trainer_age_s
        return judge_trainer(process, *ages, is_waiting=is_waiting, max_age_s=max_age_s)
    answer_age_s = age_of_newest(run, f"selector-{platform.node()[:24]}-{process.pid}-*.jsonl")
    return judge_selector(process, answer_age_s, trainer_age_s, max_age_s=max_age_s)


def main() -> None:
    """Print the verdict; exit with it."""
    role = sys.argv[1] if len(sys.argv) == 2 else ""
    if role not in ("trainer", "selector"):
        sys.exit("usage: sbpipe-health trainer|selector")
    run = Path("/runs") / os.environ["SBPIPE_RUN"]
    verdict = check(role, run, float(os.environ.get("SBPIPE_HEALTH_MAX_AGE_S") or 60))
    sys.stdout.write(f"{role}: {verdict.reason}\n")
    sys.exit(0 if verdict.is_well else 1)


if __name__ == "__main__":
    main()
