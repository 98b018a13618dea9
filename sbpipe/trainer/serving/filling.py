"""When filling of train batches begins and ends, reported in the log and as events. Decides nothing."""

import logging
from collections import Counter

from sbpipe.runs.events import EventLog

log = logging.getLogger("sbpipe.trainer")

STARTING, ALONE, LATE = "starting", "no selector", "selector late"
"""Why a batch was not whole in time: no selector was ready yet, none is left, or none was fast enough."""
_WORDS = {
    STARTING: "no selector is ready yet: training begins on examples that nobody selected",
    ALONE: "no selector is left: training goes on without selection",
    LATE: "selection comes later than the loop needs it: train batches are filled with other examples",
}
CALM = 16
"""Batches in a row, whole in time, after which filling has ended."""


class Filling:
    """Counts filled batches until CALM batches in a row were whole in time."""

    def __init__(self, events: EventLog) -> None:
        self._events = events
        self._reason = ""
        self._said: set[str] = set()
        self._batches = self._examples = self._whole = 0
        self.totals: Counter[str] = Counter()
        """Examples filled in, by reason."""

    def filled(self, step: int, count: int, reason: str) -> None:
        """The batch of this step took `count` fills."""
        if reason != self._reason:
            self._end(step)
            self._reason = reason
            self._events.write("fill", state="begins", reason=reason, step=step, batches=0, examples=0)
            if reason not in self._said:
                self._said.add(reason)
                log.info("%s", _WORDS[reason])
        self._whole = 0
        self._batches += 1
        self._examples += count
        self.totals[reason] += count

    def whole(self, step: int) -> None:
        """The batch of this step was whole in time."""
        self._whole += 1
        if self._whole >= CALM:
            self._end(step)

    def _end(self, step: int) -> None:
        if self._reason:
            self._events.write(
                "fill",
                state="ends",
                reason=self._reason,
                step=step,
                batches=self._batches,
                examples=self._examples,
            )
        self._reason = ""
        self._batches = self._examples = self._whole = 0
