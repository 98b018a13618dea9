"""A selector's events of the leases it answered: each one at first, later windows of them.
Decides nothing.
"""

from dataclasses import dataclass
from typing import Any

from sbpipe.records import Selection
from sbpipe.runs.events import EventLog
from sbpipe.runs.spans import Spans, Stages, rounded
from sbpipe.runs.thinning import Thinner


@dataclass
class _Window:
    leases: int = 0
    candidates: int = 0
    kept: int = 0


class AnswerLog:
    """Writes the events of one selector's answers."""

    def __init__(self, spans: Spans, events: EventLog) -> None:
        self._spans, self._events = spans, events
        self._thinner = Thinner(spans)
        self._number = 0
        self._window = _Window()

    def note(self, selection: Selection) -> None:
        """Write an answer, or add it to its window."""
        turn = self._thinner.turn(self._number, self._events.clock())
        self._number += 1
        told = _told(selection)
        if turn.is_single:
            self._events.write("selection", **told, spans=rounded(self._spans.take_recent()))
            return
        if turn.is_shown:
            self._events.write_recent("last_selection", **told, spans=rounded(self._spans.take_recent()))
        self._window.leases += 1
        self._window.candidates += told["candidates"]
        self._window.kept += told["kept"]
        if turn.ends_window:
            self._write_window(selection, turn.stages)

    def _write_window(self, last: Selection, stages: Stages) -> None:
        window, self._window = self._window, _Window()
        self._events.write(
            "selections",
            lease=last.lease_id,
            version=last.version,
            count=window.leases,
            candidates=window.candidates,
            kept=window.kept,
            stages=stages,
        )


def _told(selection: Selection) -> dict[str, Any]:
    return {
        "lease": selection.lease_id,
        "version": selection.version,
        "candidates": len(selection.scores),
        "kept": len(selection.kept),
    }
