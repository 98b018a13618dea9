"""Copies a run's events to trackers, in a separate process: no tracker can slow or break a run.

A step that a resume repeats is copied once: the first copy stays.
"""

import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sbpipe.errors import RunDirError
from sbpipe.runs.directory import is_held
from sbpipe.runs.follower import Follower
from sbpipe.runs.names.files import TRAINER_EVENTS
from sbpipe.runs.numbers import number
from sbpipe.show.trackers.outlet import Outlet
from sbpipe.show.trackers.scalars import without_taken_back
from sbpipe.show.trackers.tracker import Tracked, Tracker

POLL_S = 1.0
GONE_AFTER_S = 5.0
"""If a run's lock is free, silence for this long means that it was killed."""
BEGIN_WITHIN_S = 3600.0
"""How long a run may take to begin: it may have to download its data first."""
_TURNS = ("start", "resumed", "summary", "failed")
"""Kinds of events that begin or end a run."""


def wait_for_begin(path: Path, since: float, is_stopped: threading.Event) -> None:
    """Wait until a run has begun or resumed after a wall time; events of older runs do not count."""
    follower, give_up = Follower(path / TRAINER_EVENTS), time.monotonic() + BEGIN_WITHIN_S
    while not any(
        event.get("kind") in _TURNS and (number(event, "t") or 0.0) >= since for event in follower.stream()
    ):
        if time.monotonic() > give_up:
            raise RunDirError(
                f"no run began in {path} within {BEGIN_WITHIN_S:.0f} s. Track it when it has begun"
            )
        if is_stopped.wait(POLL_S):
            return


def ending_of(turn: Mapping[str, Any], *, is_in_use: bool, silent_s: float) -> str | None:
    """How a run ended, by its last event of `_TURNS`; None while it may still go on."""
    if is_in_use:
        return None
    if turn.get("kind") == "summary":
        return str(turn.get("status", "finished"))
    if turn.get("kind") == "failed":
        return "failed"
    return "killed" if silent_s >= GONE_AFTER_S else None


class Copier:
    """Follows one run directory and copies it to its outlets until the run has ended."""

    def __init__(self, run: Tracked, trackers: Sequence[Tracker]) -> None:
        self._run = run
        self._follower = Follower(run.path / TRAINER_EVENTS)
        self._outlets = [Outlet(tracker, run) for tracker in trackers]
        self._turn: Mapping[str, Any] = {}
        self._last_news = time.monotonic()

    def run(self, is_stopped: threading.Event, *, once: bool = False) -> bool:
        """Copy until the run or the tracking ends; `once`: only what is there now. Whether all was copied."""
        for outlet in self._outlets:
            outlet.start()
        while True:
            # Asked before reading, so that what was written up to the stop is still copied.
            is_last = once or is_stopped.is_set()
            self._read()
            ending = self._ending(GONE_AFTER_S if once else time.monotonic() - self._last_news)
            if ending or is_last or all(outlet.has_given_up for outlet in self._outlets):
                break
            is_stopped.wait(POLL_S)
        for outlet in self._outlets:
            outlet.finish(_numbers(self._turn), ending or "running")
        return not any(outlet.has_given_up for outlet in self._outlets)

    def _read(self) -> None:
        is_more = True
        # A piece at a time: all events of a long run would not fit into memory.
        while is_more:
            news = self._follower.look()
            is_more = news.is_more
            events = without_taken_back(news.events)
            if events:
                self._last_news = time.monotonic()
            for event in events:
                if event.get("kind") in _TURNS:
                    self._turn = event
            for outlet in self._outlets:
                outlet.take(events)

    def _ending(self, silent_s: float) -> str | None:
        # Otherwise the kernel's table of locks would be read every second.
        may_be_over = self._turn.get("kind") in ("summary", "failed") or silent_s >= GONE_AFTER_S
        return (
            ending_of(self._turn, is_in_use=is_held(self._run.path), silent_s=silent_s)
            if may_be_over
            else None
        )


def _numbers(turn: Mapping[str, Any]) -> dict[str, Any]:
    """The run's summary, if it has one, without what every event has."""
    if turn.get("kind") != "summary":
        return {}
    return {name: value for name, value in turn.items() if name not in ("t", "clock", "role", "kind")}
