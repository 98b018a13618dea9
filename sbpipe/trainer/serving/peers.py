"""The selectors that the trainer knows: which are ready, silent or stuck. Pure; time is passed in."""

from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import NamedTuple

from sbpipe.records import SelectorStats
from sbpipe.trainer.serving.speed import Speed

_TRIPS = 16
_LEASES = 4096


@dataclass
class Peer:
    """One selector, as the trainer sees it."""

    name: str
    device: str
    is_ready: bool = False
    pulls_weights: bool = False
    needs_history: bool = True
    heard_at: float = 0.0
    progressed_at: float = 0.0
    came_at: float = 0.0
    strikes: int = field(default=0, init=False)
    progress: int = field(default=-1, init=False)
    answers: int = field(default=0, init=False)
    stats: SelectorStats = field(default=SelectorStats(), init=False)
    rate: float | None = field(default=None, init=False)
    """Recent candidates per second of work; None before its second answer."""
    _speed: Speed = field(default_factory=Speed, init=False)
    _busy_s: float = field(default=0.0, init=False)
    _tuned_s: float = field(default=0.0, init=False)
    _answered_at: float = field(default=0.0, init=False)
    round_trips: tuple[float, ...] = field(default=(), init=False)
    """Travel times of the last leases and answers in seconds: from grant to answer, without the work."""
    _asked: tuple[float, float] | None = field(default=None, init=False)
    _leases: dict[int, bool] = field(default_factory=dict, init=False)
    """The leases that it was granted, oldest first, and whether it has answered them."""

    @property
    def description(self) -> str:
        """Its device, and its precision if known."""
        return f"{self.device} {self.stats.precision}".strip()

    def owes(self, lease_id: int) -> None:
        """Note that it was granted a lease."""
        self._leases[lease_id] = False
        if len(self._leases) > _LEASES:
            del self._leases[next(iter(self._leases))]

    def answers_its_own(self, lease_id: int) -> bool:
        """Whether it was ever granted this lease."""
        return lease_id in self._leases

    def answers_again(self, lease_id: int) -> bool:
        """Whether it has answered this lease before; marks it as answered."""
        before, self._leases[lease_id] = self._leases[lease_id], True
        return before

    def begins(self, now: float) -> None:
        """It was idle until this lease: the time before does not count as time without progress."""
        self.progressed_at = now
        self._asked = (now, self.stats.busy_s)

    def answered(self, stats: SelectorStats, now: float, considered: int = 0) -> None:
        """Note its answer: a selection from `considered` candidates."""
        self.stats, self.answers = stats, self.answers + 1
        worked_s = stats.busy_s - stats.tune_s  # tuning is over after the first leases
        busy_s, self._busy_s = worked_s - self._busy_s, worked_s
        elapsed_s, self._answered_at = now - self._answered_at, now
        asked, self._asked = self._asked, None
        # Only for a lease that found it idle: any other would count the time queued behind the lease before.
        if asked is not None:
            asked_at, busy_before_s = asked
            trip = max(0.0, now - asked_at - (stats.busy_s - busy_before_s))
            # A new tuple: the loop's thread reads it while answers arrive.
            self.round_trips = (*self.round_trips[1 - _TRIPS :], trip)
            # The excess over the usual travel time is a wait for a core before it began, which its spans
            # miss.
            busy_s += max(0.0, trip - median(self.round_trips))
        elif stats.tune_s == self._tuned_s:
            # It had work all the time: what its spans miss (a shared or throttled core) counts too.
            busy_s = max(busy_s, elapsed_s)
        self._tuned_s = stats.tune_s
        self._rate(considered, busy_s)

    def _rate(self, considered: int, busy_s: float) -> None:
        # The first answer includes one-time costs: pages, caches, kernels.
        if self.answers < 2 or not busy_s > 0.0:
            return
        self._speed.add(considered, busy_s)
        self.rate = self._speed.rate

    def was_refused(self) -> None:
        """Its last answer does not count, but its history has those scores: send it the run's
        history again.
        """
        self.needs_history = True

    def takes_history(self) -> bool:
        """Whether its next lease must carry the run's history; resets the mark."""
        needed, self.needs_history = self.needs_history, False
        return needed


class Former(NamedTuple):
    """What the totals of a run need of a selector that is gone. Kept small: selectors may come and go for
    months.
    """

    description: str
    stats: SelectorStats
    came_at: float
    heard_at: float


class Roster:
    """All peers by name, and the limits of silence and of no progress."""

    # A slow pass is not a stuck one, so the limit is a multiple of the slowest pass seen.
    _SLOWEST_PASSES = 8.0

    def __init__(self, *, lost_after_s: float, hung_after_s: float) -> None:
        self._lost_after_s = lost_after_s
        self._hung_after_s = hung_after_s
        self.peers: dict[str, Peer] = {}
        self._ready: list[Peer] = []
        self.gone: list[Former] = []
        self.num_lost = 0
        self.num_admitted = 0
        """How often a peer became ready."""

    def ready(self) -> list[Peer]:
        """Peers that can be granted leases, in a stable order."""
        return self._ready

    def add(self, peer: Peer) -> None:
        """A peer has come, or has become ready."""
        self.num_admitted += peer.is_ready
        # Sorted here, which is rare: `ready` is read at every turn. A new dict, because other threads read
        # it.
        self.peers = dict(sorted((self.peers | {peer.name: peer}).items()))
        self._ready = [peer for peer in self.peers.values() if peer.is_ready]

    def hear(self, name: str, now: float, *, progress: int | None = None) -> None:
        """Note a message; `progress` changes while the selector works."""
        peer = self.peers[name]
        peer.heard_at = now
        if progress is None or progress != peer.progress:
            peer.progressed_at = now
        if progress is not None:
            peer.progress = progress

    def remove(self, name: str, *, is_lost: bool = False) -> Peer | None:
        """Remove a peer, `is_lost` if it did not leave by itself; its statistics stay. None if it was
        unknown.
        """
        peer = self.peers.get(name)
        if peer is None:
            return None
        # A new dict and list, as in `add`: other threads read them.
        self.peers = {other: known for other, known in self.peers.items() if other != name}
        self._ready = [other for other in self._ready if other is not peer]
        if peer.is_ready:
            self.gone.append(Former(peer.description, peer.stats, peer.came_at, peer.heard_at))
        self.num_lost += is_lost
        return peer

    def complaints(self, now: float, holds_lease: set[str]) -> dict[str, str]:
        """Peers to give up on, and why: silent, or alive and stuck on a lease.

        The limit for a stuck selector follows its own pace, loading included. Before its first answer it may
        be compiling or loading, and the limit is `hung_after_s`.
        """
        found = {}
        for peer in self.peers.values():
            if now - peer.heard_at > self._lost_after_s:
                found[peer.name] = f"silent for {now - peer.heard_at:.1f} s"
            elif peer.name in holds_lease:
                own_pace_s = max(self._lost_after_s, self._SLOWEST_PASSES * peer.stats.slowest_chunk_s)
                patience = own_pace_s if peer.answers else self._hung_after_s
                if now - peer.progressed_at > patience:
                    found[peer.name] = f"alive but without progress for {now - peer.progressed_at:.1f} s"
        return found

    @property
    def ever(self) -> list[Former | Peer]:
        """All selectors of the run, present and gone."""
        return [*self.gone, *self.peers.values()]

    def ready_s(self, begin: float, end: float) -> float:
        """For how long selectors were ready between two times, summed over them; those that are gone until
        they were last heard.
        """
        times = [(former.came_at, former.heard_at) for former in self.gone]
        times += [(peer.came_at, end) for peer in self._ready]
        return sum(max(0.0, min(left, end) - max(came, begin)) for came, left in times)

    def total(self, of: Callable[[SelectorStats], float]) -> float:
        """The sum of a statistic over all selectors of the run."""
        return sum(of(peer.stats) for peer in self.ever)

    def mean(self, of: Callable[[SelectorStats], float | None]) -> float | None:
        """The mean of a statistic over the selectors that measured it; None if none did."""
        values = [of(peer.stats) for peer in self.ever]
        known = [value for value in values if value is not None]
        return fmean(known) if known else None

    def precisions(self) -> str | None:
        """The precisions of the present selectors, or of the gone ones if none is left; None if none has
        scored.
        """
        told = {peer.stats.precision for peer in self.peers.values() or self.gone}
        return ", ".join(sorted(told - {""})) or None
