"""Decides for each event of a long series: write it alone, gather it into a window, show it to viewers.

For frequent events with spans: steps and leases. Knows neither.
"""

from typing import NamedTuple

from sbpipe.runs.density import STEPS
from sbpipe.runs.spans import Spans, Stages, stages_since

GLIMPSE = 12
"""How many consecutive events are shown: the live page draws ten."""
GLIMPSE_EVERY_S = 5.0


class Turn(NamedTuple):
    """What is done with one event."""

    is_single: bool
    """It is written alone; others are gathered."""
    ends_window: bool
    """The gathered events are written, this one included."""
    is_shown: bool
    """It is gathered, and also shown to viewers."""
    stages: Stages
    """The stages timed since the window began, if it ends here."""

    @property
    def needs_spans(self) -> bool:
        """Whether each of its stages is written."""
        return self.is_single or self.is_shown


class Thinner:
    """Decides, and has spans keep single stages only for events that will be written."""

    def __init__(self, spans: Spans) -> None:
        self._spans = spans
        self._num_to_show = 0
        self._next_glimpse = 0.0
        self._stages_before: Stages = {}

    def turn(self, number: int, now: float) -> Turn:
        """What is done with the event of this number; called for each, in order."""
        is_next_single = STEPS.window_of(number + 1) == 1
        if STEPS.window_of(number) == 1:
            self._spans.keeps_recent = is_next_single
            if not is_next_single:
                self._stages_before = self._spans.totals()
            return Turn(is_single=True, ends_window=False, is_shown=False, stages={})
        is_shown = self._num_to_show > 0
        if is_shown:
            self._num_to_show -= 1
        elif now >= self._next_glimpse:
            self._num_to_show, self._next_glimpse = GLIMPSE, now + GLIMPSE_EVERY_S
        self._spans.keeps_recent = self._num_to_show > 0 or is_next_single
        if not STEPS.ends_window(number):
            return Turn(is_single=False, ends_window=False, is_shown=is_shown, stages={})
        stages, before = self._spans.totals(), self._stages_before
        self._stages_before = stages
        return Turn(is_single=False, ends_window=True, is_shown=is_shown, stages=stages_since(before, stages))

    def stages_so_far(self) -> Stages:
        """The stages timed since the open window began."""
        return stages_since(self._stages_before, self._spans.totals())
