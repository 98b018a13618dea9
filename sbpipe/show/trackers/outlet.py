"""Copies a run to one tracker: it gets what it does not have yet, and may fail without harm to the others."""

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

from sbpipe.runs.numbers import number
from sbpipe.show.trackers.bookmark import Bookmark
from sbpipe.show.trackers.scalars import scalars_of
from sbpipe.show.trackers.tracker import Tracked, Tracker

log = logging.getLogger("sbpipe")


class Outlet:
    """Gives a tracker what it does not have yet, and gives it up at its first error."""

    def __init__(self, tracker: Tracker, run: Tracked) -> None:
        self._tracker = tracker
        self._run = run
        self._bookmark = Bookmark.read(run.path, tracker.name) if tracker.remembers else Bookmark()
        self.has_given_up = False

    def start(self) -> None:
        """Open the tracker."""
        known = Tracked(self._run.path, self._run.project, self._run.settings, self._bookmark.known_as)
        try:
            self._bookmark.known_as = self._tracker.start(known)
        except self._tracker.errors as error:
            self._give_up(error)

    def take(self, events: Sequence[Mapping[str, Any]]) -> None:
        """Copy events, and remember how far that was."""
        if self.has_given_up or not events:
            return
        try:
            for event in events:
                values, step = scalars_of(event), event.get("step")
                if values and isinstance(step, int) and self._bookmark.is_new(event["kind"], step):
                    self._tracker.scalars(values, step, number(event, "t") or time.time())
            # Remembered after sending: a kill in between copies a few points twice, but loses none.
            self._tracker.flush()
            self._remember()
        except self._tracker.errors as error:
            self._give_up(error)

    def finish(self, summary: Mapping[str, Any], ending: str) -> None:
        """Close the tracker."""
        if self.has_given_up:
            return
        try:
            # If the run was copied to its end before, the summary is there already.
            is_new = bool(summary) and self._bookmark.is_new("summary", summary.get("steps", 0))
            self._tracker.finish(summary if is_new else {}, ending)
            self._remember()
        except self._tracker.errors as error:
            self._give_up(error)

    def _remember(self) -> None:
        if self._tracker.remembers:
            self._bookmark.write(self._run.path, self._tracker.name)

    def _give_up(self, error: Exception) -> None:
        self.has_given_up = True
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        later = f"`sbpipe track {self._run.path} --{self._tracker.name}` copies the rest later"
        log.warning("%s gave up (%s). The run itself continues; %s", self._tracker.name, reason, later)
