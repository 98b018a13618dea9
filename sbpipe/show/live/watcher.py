"""Reads the followed runs again and again, and tells pages what changed. Knows no web server."""

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sbpipe.runs.directory import is_held
from sbpipe.runs.follower import RunFollower
from sbpipe.runs.names.files import LOCK
from sbpipe.show.live import timeline
from sbpipe.show.live.finder import Found, find
from sbpipe.show.live.series import Mark
from sbpipe.show.live.state import RunState
from sbpipe.show.live.status import head

# A trainer writes its progress twice a second; new runs are rarer, and finding them walks folders.
LOOK_EVERY_S = 0.5
FIND_EVERY_S = 2.0
STALLED_AFTER_S = 30.0


@dataclass
class _Followed:
    follower: RunFollower
    state: RunState = field(default_factory=RunState)
    notes: list[str] = field(default_factory=list)
    is_behind: bool = False
    """A backlog is being read; drawing its curves meanwhile would be wasted."""
    life: int = field(default_factory=itertools.count().__next__)
    """A new number for every replacement of the run, so that a page forgets the old curves too."""


@dataclass
class Sent:
    """What one page already has, so that it is sent only what is new."""

    lives: dict[str, int] = field(default_factory=dict)
    num_events: dict[str, int] = field(default_factory=dict)
    marks: dict[tuple[str, str], Mark] = field(default_factory=dict)
    parts: dict[tuple[str, str], Any] = field(default_factory=dict)


class Watcher:
    """The runs under some paths. One thread reads them; any number of pages ask."""

    def __init__(
        self,
        paths: Sequence[Path],
        *,
        stalled_after_s: float = STALLED_AFTER_S,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._paths = list(paths)
        self._stalled_after_s = stalled_after_s
        self.now = now
        self._lock = threading.Lock()
        self._runs: dict[str, _Followed] = {}
        self._found = Found()
        self._next_find = 0.0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="watch", daemon=True)

    # --- looking ----------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the reading thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the reading thread."""
        self._is_over.set()
        if self._thread.is_alive():
            self._thread.join(5.0)

    def _follow(self) -> None:
        while not self._is_over.is_set():
            if not self.look():
                self._is_over.wait(LOOK_EVERY_S)

    def look(self) -> bool:
        """Read a bounded piece of what is new in every run; returns whether there is more."""
        if time.monotonic() >= self._next_find:
            self._next_find = time.monotonic() + FIND_EVERY_S
            self._adopt(find(self._paths))
        is_more = False
        for name, followed in list(self._runs.items()):
            # Outside the lock: pages must not wait for a disk.
            news = followed.follower.look()
            with self._lock:
                if news.is_anew:
                    followed = self._runs[name] = _Followed(followed.follower)
                for event in news.events:
                    followed.state.fold(event)
                followed.is_behind = news.is_more
                followed.notes = [
                    *news.notes,
                    *(["reading what has happened so far …"] if news.is_more else []),
                ]
            is_more = is_more or news.is_more
        return is_more

    def _adopt(self, found: Found) -> None:
        with self._lock:
            known, self._found = self._runs, found
            self._runs = {
                name: known[name]
                if name in known and known[name].follower.path == path
                else _Followed(RunFollower(path))
                for name, path in found.runs.items()
            }

    # --- telling ----------------------------------------------------------------------------------

    def overview(self) -> dict[str, Any]:
        """Every run's line, newest first, the studies, and what is wrong with the paths themselves."""
        with self._lock:
            now, found = self.now(), self._found
            heads = [self._head(name, followed, now) for name, followed in reversed(self._runs.items())]
            return {
                "heads": heads,
                "studies": found.studies,
                "problems": found.problems,
                "notes": found.notes,
            }

    def _head(self, name: str, followed: _Followed, now: float) -> dict[str, Any]:
        line = head(name, followed.state, now, self._stalled_after_s, followed.notes)
        if name in self._found.failures and line["state"] not in ("finished", "failed"):
            line |= {
                "state": "failed",
                "age_s": None,
                "left_s": None,
                "notes": [*line["notes"], self._found.failures[name]],
            }
        run = followed.follower.path
        # Only for a stalled run, because this reads the kernel's table of locks.
        if line["state"] == "stalled" and (run / LOCK).exists() and not is_held(run):
            way_out = f"resume with: sbpipe run --run-dir {run} --resume"
            line["notes"] = [
                *line["notes"],
                f"no trainer of this host works on it; if it was killed, {way_out}",
            ]
        return line

    def news(self, shown: Sequence[str], sent: Sent) -> dict[str, Any]:
        """What changed since `sent`, which is updated: the overview, and curves of the shown runs."""
        told: dict[str, Any] = {}
        _put(told, sent, "", "overview", self.overview())
        with self._lock:
            for name in shown:
                followed = self._runs.get(name)
                change = {} if followed is None or followed.is_behind else _run_news(name, followed, sent)
                if change:
                    told.setdefault("runs", {})[name] = change
        return told


def _run_news(name: str, followed: _Followed, sent: Sent) -> dict[str, Any]:
    told: dict[str, Any] = {}
    state = followed.state
    if sent.lives.get(name, followed.life) != followed.life:
        for key in [key for key in (*sent.marks, *sent.parts) if key[0] == name]:
            sent.marks.pop(key, None)
            sent.parts.pop(key, None)
        told["is_anew"] = True
    # Nothing has happened: this saves drawing the timeline for every page.
    elif sent.num_events.get(name) == state.num_events:
        return told
    sent.lives[name], sent.num_events[name] = followed.life, state.num_events
    for curve, series in state.series.items():
        change, sent.marks[name, curve] = series.since(sent.marks.get((name, curve), Mark()))
        if change is not None:
            told.setdefault("series", {})[curve] = change
    _put(told, sent, name, "timeline", timeline.drawing(state.timeline))
    _put(told, sent, name, "selectors", [{"name": key, **value} for key, value in state.selectors.items()])
    _put(told, sent, name, "warnings", list(state.warnings))
    return told


def _put(told: dict[str, Any], sent: Sent, name: str, part: str, value: Any) -> None:
    """Send a small part as a whole if it has changed."""
    if sent.parts.get((name, part)) != value:
        told[part] = sent.parts[name, part] = value
