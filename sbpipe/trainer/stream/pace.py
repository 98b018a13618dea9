"""How fast the loop steps and its batches are loaded, and until when the next batch can wait for selection.
Pure: time is passed in.

The loop's own period is that between taking a batch and asking for the next one: what it would be if it never
waited. A batch that is not whole when a period, less the time that its loading takes, is over would be late,
so it is filled then. Better too early than too late: a period is taken from the short ones, a loading time
from the long ones.
"""

from collections import deque
from collections.abc import Collection

WINDOW = 16
"""Steps that count."""
KNOWN_AFTER = 3
"""Steps until a period is believed; the first ones warm up."""
SHORT, LONG = 0.25, 0.9
"""Quantiles: of periods and of loading times, where being late is what must not be."""
MARGIN, MARGIN_S = 0.1, 1e-3
"""Share of a period and seconds by which a fill is early: threads take their time to wake."""
SLACK = 0.25
"""Share of a period by which answers should be there before a fill is due: no two take the same time."""

LEAST_AHEAD = 0.5
"""Of a batch: leases are half of one, and come whole or not at all."""


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
        """Time that is not training went by inside a step."""
        if self._started_at is not None:
            self._started_at += seconds

    @property
    def period_s(self) -> float | None:
        """What a step takes the loop if it never waits; None while it is not known."""
        return _quantile(self._periods, 0.5) if len(self._periods) >= KNOWN_AFTER else None

    @property
    def fill_at(self) -> float | None:
        """When the next batch must be whole; None while the period is not known."""
        if self._started_at is None or len(self._periods) < KNOWN_AFTER:
            return None
        return self._started_at + _quantile(self._periods, SHORT) - self._lead_s

    def ahead(self, scoring_s: float | None) -> float:
        """Train batches to select ahead of the next one, so that it is whole in time; 0 while not known.

        A lease that is granted when a step begins is answered when its candidates are scored: a batch's in
        `scoring_s` (None = not known: about a step). What must be whole sooner has to be asked for before.
        """
        period_s = self.period_s
        if not period_s or scoring_s == 0.0:
            return 0.0
        in_time_s = (1.0 - SLACK) * period_s - self._lead_s
        # While a share 1 - ahead of a batch is scored, the loop must not get past the moment of the fill. A
        # selector that needs more than a step is late whatever is done.
        ahead = 1.0 - in_time_s / min(period_s, scoring_s or period_s)
        return min(1.0, max(LEAST_AHEAD, ahead)) if ahead > 0.0 else 0.0

    @property
    def _lead_s(self) -> float:
        view_s = _quantile(self._views, LONG) if self._views else 0.0
        return view_s + MARGIN * _quantile(self._periods, 0.5) + MARGIN_S


def _quantile(values: Collection[float], share: float) -> float:
    """As numpy interpolates; of so few numbers, several times a step, numpy takes thirty times as long."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])
