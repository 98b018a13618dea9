"""How selectors join and leave: hello, welcome, ready, heartbeat, goodbye, and the pieces of weights they
fetch.

It keeps the roster and replies; leases and batches belong to the dispatcher.
"""

import logging

from sbpipe.link.limits import MAX_STRIKES
from sbpipe.link.messages import (
    Announce,
    Chunk,
    Departed,
    Fenced,
    Fetch,
    Gone,
    Goodbye,
    Heartbeat,
    Hello,
    Message,
    Ready,
    Reject,
    Welcome,
)
from sbpipe.link.ports import Port
from sbpipe.records import Part, RunEnd, SelectorStats
from sbpipe.runs.events import EventLog
from sbpipe.trainer.serving.claims import possible_stats
from sbpipe.trainer.serving.peers import Peer, Roster
from sbpipe.weights.publisher import Publisher

log = logging.getLogger("sbpipe.trainer")


class Reception:
    """Admits, hears and removes selectors."""

    def __init__(
        self,
        *,
        port: Port,
        roster: Roster,
        welcome: Welcome,
        fingerprints: dict[str, str],
        publisher: Publisher,
        is_clocked: bool,
        events: EventLog,
    ) -> None:
        self._port = port
        self.roster = roster
        self._welcome = welcome
        self._fingerprints = fingerprints
        self._publisher = publisher
        self._is_clocked = is_clocked
        self._events = events

    def admit(
        self, name: str, device: str, now: float, *, pulls_weights: bool = False, precision: str = ""
    ) -> None:
        """Make a selector ready: it may be granted leases from now on."""
        ready = Peer(
            name, device, True, pulls_weights=pulls_weights, heard_at=now, progressed_at=now, came_at=now
        )
        ready.stats = SelectorStats(precision=precision)
        self.roster.add(ready)
        way = "pulls weights" if pulls_weights else "shares memory"
        log.info("selector %s on %s is ready (%s)", name, ready.description, way)
        self._say_ready(ready)

    def _say_ready(self, peer: Peer, reason: str | None = None) -> None:
        self._events.write(
            "selector",
            selector=peer.name,
            state="ready",
            device=peer.description,
            pulls_weights=peer.pulls_weights,
            reason=reason,
        )

    def told(self, peer: Peer, stats: SelectorStats) -> None:
        """Note a selector's statistics; if its precision has changed, report it as ready again."""
        before, peer.stats = peer.stats.precision, stats
        if peer.is_ready and before and stats.precision not in ("", before):
            reason = f"scores in {stats.precision} from now on"
            log.info("selector %s %s", peer.name, reason)
            self._say_ready(peer, reason)

    def heard(self, name: str, now: float, progress: int | None = None) -> bool:
        """Note a sign of life; tell a peer that was given up on to say hello again."""
        if name not in self.roster.peers:
            self._port.send(name, Fenced())
            return False
        self.roster.hear(name, now, progress=progress)
        return True

    def handle(self, name: str, message: Message, now: float) -> str:
        """Handle any message but a selection; returns the name of a peer whose leases must be taken back, or
        "".
        """
        if isinstance(message, Hello):
            # A selector says hello again when it has lost us: what it held of the session before is void.
            self._publisher.release(name)
            self.roster.remove(name)
            self.roster.add(Peer(name, message.device, heard_at=now, progressed_at=now, came_at=now))
            self._port.send(name, self._welcome)
            return name
        if isinstance(message, Departed):
            return self.lose(name, message.reason)
        if isinstance(message, Goodbye):
            told = f"{message.end}: {message.reason}" if message.reason else message.end
            return self.lose(name, f"said goodbye ({told})", is_failure=message.end is RunEnd.FAILED)
        if isinstance(message, Fetch):
            # Weights are only for selectors with matching fingerprints.
            if self.heard(name, now) and self.roster.peers[name].is_ready:
                self._serve(name, message)
        elif self.heard(name, now, message.progress if isinstance(message, Heartbeat) else None):
            peer = self.roster.peers[name]
            if isinstance(message, Heartbeat) and message.stats is not None:
                self.told(peer, possible_stats(message.stats, now - peer.came_at))
            if isinstance(message, Ready):
                self._compare(peer, message, now)
        return ""

    def _compare(self, peer: Peer, ready: Ready, now: float) -> None:
        theirs = ready.fingerprints
        differing = [
            f"{key}: trainer {ours}, selector {theirs.get(key, '(none)')}"
            for key, ours in self._fingerprints.items()
            if not _agree(ours, theirs.get(key, ""))
        ]
        if differing:
            reason = "the two sides do not train the same thing; " + "; ".join(differing)
            self._reject(peer, reason)
            return
        if not peer.is_ready:
            self.admit(
                peer.name, peer.device, now, pulls_weights=ready.pulls_weights, precision=ready.precision
            )
        if ready.pulls_weights and not self._is_clocked:
            # Under a clock an exact lease names the version to pull, which need not be the newest.
            for part in self._publisher:
                if self._publisher[part].newest_version >= 0:
                    self.announce(peer.name, part, self._publisher[part].newest_version)

    def _reject(self, peer: Peer, reason: str) -> None:
        self._port.send(peer.name, Reject(reason))
        self.roster.remove(peer.name)
        self._port.release(peer.name)
        log.warning("selector %s rejected: %s", peer.name, reason)
        self._events.write("selector", selector=peer.name, state="rejected", reason=reason)

    def accuse(self, peer: Peer, fault: str) -> str:
        """Note an act that no honest selector does; returns its name if it is turned out for it, else ""."""
        peer.strikes += 1
        if peer.strikes < MAX_STRIKES:
            return ""
        return self.turn_out(peer, f"{peer.strikes} times: {fault}")

    def turn_out(self, peer: Peer, reason: str) -> str:
        """Refuse all further messages of a selector; returns its name: its leases must be taken back."""
        self._publisher.release(peer.name)
        self._port.refuse(peer.name)
        self._reject(peer, reason)
        return peer.name

    def announce(self, name: str, part: Part, version: int) -> None:
        """Tell a selector that pulls weights about a newer snapshot."""
        self._port.send(name, Announce(version, self._publisher[part].num_bytes, part))

    def lose(self, name: str, reason: str, *, is_failure: bool = True) -> str:
        """Remove a selector that is gone; returns its name if it was known, else ""."""
        self._publisher.release(name)
        self._port.release(name)
        if self.roster.remove(name, is_lost=is_failure) is None:
            return ""
        log.log(
            logging.WARNING if is_failure else logging.INFO,
            "selector %s %s; its leases go back",
            name,
            reason,
        )
        self._events.write("selector", selector=name, state="lost" if is_failure else "left", reason=reason)
        return name

    def _serve(self, name: str, fetch: Fetch) -> None:
        """Send one piece of a snapshot; its slot is held from the first piece to the last."""
        publisher = self._publisher.get(fetch.part)
        index = publisher.hold(name, fetch.version) if publisher is not None else None
        end, piece = fetch.offset + fetch.num_bytes, None
        if publisher is not None and index is not None and end <= publisher.num_bytes:
            piece = publisher.piece(index, fetch.version, fetch.offset, end)
        if publisher is None or piece is None:
            self._port.send(name, Gone(fetch.version, fetch.part))
            return
        self._port.send(name, Chunk(fetch.version, fetch.offset, publisher.num_bytes, piece, fetch.part))
        if end == publisher.num_bytes:
            publisher.release(name)


_ROUNDING = 0.01
"""How far two devices may differ on the same computation, relative to the largest number."""


def _agree(ours: str, theirs: str) -> bool:
    """Whether two fingerprints match: equal, or nearly equal lists of numbers."""
    if ours == theirs:
        return True
    try:
        mine, other = ([float(word) for word in text.split(" ")] for text in (ours, theirs))
    except ValueError:
        return False
    if len(mine) != len(other):
        return False
    most = _ROUNDING * max(map(abs, mine), default=0.0)
    return all(abs(a - b) <= most for a, b in zip(mine, other, strict=True))
