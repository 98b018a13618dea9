"""What becomes of each event of a long series: written alone, gathered into a window, shown to who watches.

For whatever comes in numbers, with spans: steps and leases. Knows neither.
"""

from typing import NamedTuple

from sbpipe.runs.density import STEPS
from sbpipe.runs.spans import Spans, Stages, stages_since

GLIMPSE = 12
"""Events in a row that are shown: the live page draws ten."""
GLIMPSE_EVERY_S = 5.0


class Turn(NamedTuple):
    """What becomes of one event."""

    is_single: bool
    """It is written alone; others are gathered."""
    ends_window: bool
    """What was gathered is written, this one included."""
    is_shown: bool
    """It is gathered, and shown to who watches."""
    stages: Stages
    """What was timed since the window began, where it ends."""

    @property
    def needs_spans(self) -> bool:
        """Whether each of its stages is written."""
        return self.is_single or self.is_shown


class Thinner:
    """Decides, and lets the spans be kept only where somebody will write them."""

    def __init__(self, spans: Spans) -> None:
        self._spans = spans
        self._num_to_show = 0
        self._next_glimpse = 0.0
        self._stages_before: Stages = {}

    def turn(self, number: int, now: float) -> Turn:
        """What becomes of the event of this number; called for each, in order."""
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
        """What was timed since the window began that is open now."""
        return stages_since(self._stages_before, self._spans.totals())
