"""How fast the loop steps and its batches are loaded, and how long the next batch can wait for selection.
Pure: time is passed in.

The loop's own period is the time from taking a batch to asking for the next one: the period of a loop that
never waits. The next batch must be whole one period after the last, less the time to load it; if it is not,
it is filled then. Too early is better than too late, so the period is a low quantile and the loading time a
high one.
"""

from collections import deque
from collections.abc import Collection

WINDOW = 16
"""Steps that count."""
KNOWN_AFTER = 3
"""Steps before the period is used; the first ones are warm-up."""
SHORT, LONG = 0.25, 0.9
"""Quantiles of periods and of loading times for the moment of a fill, which must not be too late."""
MARGIN, MARGIN_S = 0.1, 1e-3
"""Share of a period, and seconds, by which a fill is early: threads need time to wake."""
SLACK = 0.25
"""Share of a period by which answers should arrive before a fill is due: their times vary."""

LEAST_AHEAD = 0.5
"""In batches: leases are half a batch, and arrive whole."""


class Pace:
    """The last periods of the loop and the last loading times of its batches."""

    def __init__(self) -> None:
        self._periods: deque[float] = deque(maxlen=WINDOW)
        self._views: deque[float] = deque(maxlen=WINDOW)
        self._started_at: float | None = None

    def started(self, now: float, asked_at: float) -> None:
        """The loop takes a batch that it had asked for at `asked_at`."""
        if self._started_at is not None:
            self._periods.append(max(0.0, asked_at - self._started_at))
        self._started_at = now

    def viewed(self, seconds: float) -> None:
        """A train batch was loaded."""
        self._views.append(seconds)

    def skip(self, seconds: float) -> None:
        """Leave out time inside a step that was not training."""
        if self._started_at is not None:
            self._started_at += seconds

    @property
    def period_s(self) -> float | None:
        """The time of a step for a loop that never waits; None while it is not known."""
        return _quantile(self._periods, 0.5) if len(self._periods) >= KNOWN_AFTER else None

    @property
    def fill_at(self) -> float | None:
        """When the next batch must be whole; None while the period is not known."""
        if self._started_at is None or len(self._periods) < KNOWN_AFTER:
            return None
        return self._started_at + _quantile(self._periods, SHORT) - self._lead_s

    def ahead(self, scoring_s: float | None) -> float:
        """Train batches to lease ahead of the next one, so that it is whole in time; 0 while not known.

        A lease granted at the start of a step is answered when its candidates are scored: those of a batch
        after `scoring_s` (None = not known: about a step). What must be whole sooner is leased earlier.
        """
        period_s = self.period_s
        if not period_s or scoring_s == 0.0:
            return 0.0
        in_time_s = (1.0 - SLACK) * period_s - self._lead_s
        # A share 1 - ahead of a batch must be scored before the moment of the fill. A selector that needs
        # more than a step is late in any case.
        ahead = 1.0 - in_time_s / min(period_s, scoring_s or period_s)
        return min(1.0, max(LEAST_AHEAD, ahead)) if ahead > 0.0 else 0.0

    @property
    def _lead_s(self) -> float:
        view_s = _quantile(self._views, LONG) if self._views else 0.0
        return view_s + MARGIN * _quantile(self._periods, 0.5) + MARGIN_S


def _quantile(values: Collection[float], share: float) -> float:
    """A quantile as numpy interpolates it; for so few numbers numpy takes thirty times as long."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])
