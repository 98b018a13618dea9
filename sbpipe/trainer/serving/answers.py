"""Handles messages of selectors. A selection is checked (is it the sender's own lease, are its numbers
possible) and goes to the stream; any other message goes to the reception. No thread, no model.
"""

from collections.abc import Callable

from sbpipe.config import Config
from sbpipe.link.messages import Message
from sbpipe.records import Selection
from sbpipe.runs.events import EventLog
from sbpipe.trainer.serving.claims import possible_selection
from sbpipe.trainer.serving.late import LateBatches
from sbpipe.trainer.serving.peers import Peer
from sbpipe.trainer.serving.reception import Reception
from sbpipe.trainer.step_outcome import DivergedError
from sbpipe.trainer.stream.finite import FiniteScores
from sbpipe.trainer.stream.stream import Stream


class Answers:
    """Handles each message; counts answers that came too late or twice."""

    def __init__(
        self,
        config: Config,
        stream: Stream,
        reception: Reception,
        late: LateBatches,
        expire: Callable[[str], None],
        events: EventLog,
    ) -> None:
        """`expire` takes back the leases of a selector by its name."""
        self._stream, self._reception, self._late, self._expire = stream, reception, late, expire
        self._events = events
        self._finite = FiniteScores() if config.selection.traits.needs_scores else None
        # A loop that can go on without this selector detects divergence by its own losses.
        self._goes_on_alone = not config.needs_a_selector
        self.num_fenced = 0

    def handle(self, name: str, message: Message, now: float) -> None:
        """A message of a selector."""
        if not isinstance(message, Selection):
            expired = self._reception.handle(name, message, now)
            if expired:
                self._expire(expired)
        elif self._reception.heard(name, now):
            self._check(self._reception.roster.peers[name], message, now)

    def _check(self, peer: Peer, selection: Selection, now: float) -> None:
        if not peer.is_ready:
            return  # it was granted no lease since it said hello
        if not peer.answers_its_own(selection.lease_id):
            self._expire(self._reception.accuse(peer, "answered a lease that it was never granted"))
        elif peer.answers_again(selection.lease_id):
            self.num_fenced += 1
        else:
            self._take(peer, possible_selection(selection, now - peer.came_at), now)

    def _take(self, peer: Peer, selection: Selection, now: float) -> None:
        self._reception.told(peer, selection.stats)
        peer.answered(selection.stats, now, len(selection.scores))
        reason = self._stream.accept(selection)
        if not reason:
            self._judge_scores(peer, selection)
            return
        peer.was_refused()
        if not self._late.was_taken_back(selection.lease_id):
            self.num_fenced += 1
            self._events.write("fenced", selector=peer.name, lease=selection.lease_id, reason=reason)

    def _judge_scores(self, peer: Peer, selection: Selection) -> None:
        if self._finite is None:
            return
        try:
            self._finite.see(selection.scores, self._stream.steps_done)
        except DivergedError as error:
            if not self._goes_on_alone:
                raise
            self._expire(self._reception.turn_out(peer, str(error)))
