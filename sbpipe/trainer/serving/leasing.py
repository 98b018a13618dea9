"""Leases to selectors and back: sent to ready ones, taken back from lost ones, and answered by the trainer
itself where none is left. Time is passed in; no thread, no model.
"""

from sbpipe.config import Config
from sbpipe.errors import PeerLost
from sbpipe.link.ports import Port
from sbpipe.runs.events import EventLog
from sbpipe.trainer.serving.late import LateBatches
from sbpipe.trainer.serving.peers import Peer
from sbpipe.trainer.serving.reception import Reception
from sbpipe.trainer.stream.fallback import PEER as FALLBACK
from sbpipe.trainer.stream.fallback import Fallback
from sbpipe.trainer.stream.stream import Stream


class Leasing:
    """Sends what the stream grants."""

    def __init__(
        self,
        config: Config,
        stream: Stream,
        port: Port,
        reception: Reception,
        late: LateBatches,
        fallback: Fallback,
        events: EventLog,
        *,
        now: float,
    ) -> None:
        self._config, self._stream, self._port = config, stream, port
        self._reception, self._late, self._fallback, self._events = reception, late, fallback, events
        self._roster = reception.roster
        self._next_watch = 0.0
        self._alone_since = now
        self.num_fallback = 0
        self.most_selectors = 0

    def watch(self, now: float) -> None:
        """Give up on selectors that are silent or stuck."""
        # Many selectors cause thousands of turns a second, and silence is measured in heartbeats.
        if now < self._next_watch:
            return
        self._next_watch = now + self._config.link.heartbeat_s / 10
        for name, reason in self._roster.complaints(now, self._stream.ledger.holders).items():
            self._reception.lose(name, reason)
            self.expire(name)
        if self._roster.ready():
            self._alone_since = now

    def expire(self, name: str) -> None:
        """Take back the leases of a selector."""
        count = self._stream.expire_peer(name)
        if count:
            self._events.write("expired", selector=name, leases=count)

    def grant(self, now: float, *, is_paused: bool = False) -> None:
        """Send the leases that are due to the ready selectors."""
        peers = self._roster.ready()
        self.most_selectors = max(self.most_selectors, len(peers))
        if is_paused:
            return
        busy = self._stream.ledger.holders
        for peer, lease in self._stream.grant(peers):
            if not self._port.send(peer.name, lease):
                self._reception.lose(peer.name, "does not take messages")
                self.expire(peer.name)
                continue
            peer.owes(lease.lease_id)
            if peer.name not in busy:
                peer.begins(now)
        if not peers and not self._stream.is_finished:
            self._go_alone(now)

    def _go_alone(self, now: float) -> None:
        """No selector is ready: wait for the first one, or do as `selection.fallback` says."""
        # Before the first selector there are no scores to fall back on, and the user is still starting it.
        fallback = self._config.selection.fallback if self._roster.num_admitted else "wait"
        if fallback == "fail":
            raise PeerLost(
                "the last selector is gone and selection.fallback = 'fail'. Go on with --resume, or set "
                "another fallback"
            )
        if self._config.is_clocked:
            fallback = "wait"  # the choice of a fallback would depend on when it began
        if self._late.may_fill:
            return
        alone_s = now - self._alone_since
        if fallback == "wait":
            if alone_s > self._config.link.wait_s:
                raise PeerLost(
                    f"no selector for {alone_s:.0f} s (link.wait_s). Start one with: sbpipe selector "
                    "--connect RUN_DIR"
                )
            return
        local = Peer(FALLBACK, "trainer", is_ready=True, needs_history=False)
        for _, lease in self._stream.grant([local]):
            selection, versions = self._fallback.answer(lease, self._stream.steps_done)
            self._stream.accept(selection, versions)
            self.num_fallback += 1
