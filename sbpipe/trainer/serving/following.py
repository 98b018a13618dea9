"""Follows the speeds of the loop and of the selectors: sets how far ahead the stream leases, and the keep
rate under `selection.keep = "auto"`. No thread, no socket.
"""

from sbpipe.config import Config
from sbpipe.runs.events import EventLog
from sbpipe.trainer.serving.peers import Roster
from sbpipe.trainer.stream import fleet
from sbpipe.trainer.stream.keep import TURN, KeepControl
from sbpipe.trainer.stream.pace import Pace
from sbpipe.trainer.stream.stream import Stream


class SpeedFollower:
    """Reads both speeds when a batch begins and when its step has ended."""

    def __init__(self, config: Config, stream: Stream, roster: Roster, pace: Pace, events: EventLog) -> None:
        self._stream, self._roster, self._pace, self._events = stream, roster, pace, events
        self._fills, self._least = config.fills, fleet.least_of(config)
        bounds = config.keep_bounds
        self._control = KeepControl(stream.keep, bounds, stream.batch_size)
        self._goes_lower = bounds is not None and bounds.least < bounds.usual
        self._effective: float | None = None

    def batch_started(self) -> None:
        """Tell the stream how long a step takes, and how many batches to lease ahead."""
        stream = self._stream
        if self._fills:
            speed = sum(self._rates())
            scoring_s = stream.batch_size / (stream.keep * speed) if speed else None
            stream.step_s, stream.ahead = self._pace.period_s, self._pace.ahead(scoring_s)
        elif len(self._roster.peers) >= fleet.MANY:
            stream.step_s = self._pace.period_s

    def step_done(self, *, labels_look_wrong: bool = False) -> None:
        """Revise the keep rate where speeds, or the effective share of the candidates, have changed.

        Where labels look wrong a small share is no reason to keep fewer: wrong labels make up much of it.
        """
        rates = self._rates()
        if self._stream.steps_done % TURN == 0:
            self._look_at_share()
        effective = None if labels_look_wrong else self._effective
        change = self._control.update(self._stream.steps_done, self._pace.period_s, rates, effective)
        if change is not None:
            self._stream.aim(change.new)
            self._events.write("keep", step=self._stream.steps_done, selectors=len(rates), **change._asdict())

    def restored(self) -> None:
        """The stream goes on from a checkpoint; so does the keep rate."""
        self._control.restore(self._stream.keep)
        # Now: until the next turn the rate would otherwise go back to its usual bound.
        self._look_at_share()

    def _look_at_share(self) -> None:
        """Update the effective share of the last candidates; called as often as the rate may change."""
        if not self._goes_lower:
            return
        found = self._stream.kind.effective(self._stream.table.recent)
        self._effective = found.share if found else None

    def _rates(self) -> list[float]:
        """Candidates per second, where known, of the ready selectors that can be of use at a time."""
        rates = [peer.rate for peer in self._roster.ready() if peer.rate]
        stream = self._stream
        most = fleet.most_useful(batch_size=stream.batch_size, keep=stream.keep, least=self._least)
        return rates if len(rates) <= most else sorted(rates, reverse=True)[:most]
