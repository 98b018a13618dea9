"""Late train batches: how long the next one may wait for selection, and how it is then completed. Knows the
stream and the roster; no thread, no socket, no model.
"""

from sbpipe.config import Config
from sbpipe.records import TrainBatch
from sbpipe.runs.events import EventLog
from sbpipe.trainer.serving.filling import ALONE, LATE, STARTING, Filling
from sbpipe.trainer.serving.peers import Roster
from sbpipe.trainer.stream.fallback import Fallback
from sbpipe.trainer.stream.fill import Filler
from sbpipe.trainer.stream.pace import Pace
from sbpipe.trainer.stream.stream import Stream


class LateBatches:
    """Completes the next train batch from the line when selections do not arrive in time."""

    def __init__(
        self,
        config: Config,
        stream: Stream,
        roster: Roster,
        pace: Pace,
        drawer: Fallback,
        events: EventLog,
    ) -> None:
        """`pace` is the loop's, measured by the owner; `drawer` answers the leases of fills."""
        self._stream, self._roster, self._pace = stream, roster, pace
        self._fills, self._needs_a_selector = config.fills, config.needs_a_selector
        self._filler = Filler(stream, drawer)
        self._filling = Filling(events)

    def time_left(self, now: float, *, is_paused: bool) -> float | None:
        """Seconds until the next batch must be whole; None = no limit."""
        stream = self._stream
        if not self.may_fill or stream.num_assembled > stream.num_started:
            return None  # the loop has yet to begin the batch before this one
        if stream.is_waiting:
            return 0.0
        fill_at = None if is_paused else self._pace.fill_at
        return None if fill_at is None else fill_at - now

    @property
    def may_fill(self) -> bool:
        """Whether late batches are filled. Where a selector is needed and none is ready, `selection.fallback`
        decides.
        """
        return self._fills and not (self._needs_a_selector and not self._roster.ready())

    def fill(self) -> bool:
        """Complete the next batch from the line; returns whether that was possible."""
        step = self._stream.num_assembled
        count = self._filler.fill()
        self._stream.table.settle()
        if count:
            admitted = self._roster.num_admitted
            reason = LATE if self._roster.ready() else ALONE if admitted else STARTING
            self._filling.filled(step, count, reason)
        return count > 0

    def taken(self, batch: TrainBatch) -> None:
        """The loader has taken this batch."""
        if not batch.is_fill.any():
            self._filling.whole(batch.step)

    def was_taken_back(self, lease_id: int) -> bool:
        """Whether this lease was taken back for a fill, so that its late answer is no fault."""
        return lease_id in self._filler.taken_back

    @property
    def filled(self) -> dict[str, int]:
        """Examples filled in because no selector was ready yet, none was left, or it was late."""
        totals = self._filling.totals
        return {"fill.starting": totals[STARTING], "fill.alone": totals[ALONE], "fill.late": totals[LATE]}
