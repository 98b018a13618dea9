"""Leases under a logical clock (lockstep, fixed-lag, inline): one lease at a time fills one train batch,
scored by one exact version. No thread, no socket.
"""

from sbpipe.config import Config
from sbpipe.records import Lease
from sbpipe.trainer.serving.peers import Peer
from sbpipe.trainer.stream.leases import Leases
from sbpipe.trainer.stream.ledger import Ledger
from sbpipe.trainer.stream.moment import Moment
from sbpipe.trainer.stream.versions import Versions


class Clocked:
    """Grants what the clock allows, to one selector."""

    def __init__(self, config: Config, ledger: Ledger, versions: Versions, leases: Leases) -> None:
        self._lag = config.lag
        self._ledger, self._versions, self._leases = ledger, versions, leases
        self._active = ""

    def grant(self, peers: list[Peer], now: Moment) -> list[tuple[Peer, Lease]]:
        """The lease to send now, if there is one."""
        versions = self.versions_of_next(now)
        if self._ledger.out or versions is None:
            return []
        # Under a clock one selector does all the work, so its history grows as in a single process. When it
        # is lost, the next one gets the run's history with its first lease.
        peer = next((peer for peer in peers if peer.name == self._active), peers[0])
        peer.needs_history |= peer.name != self._active
        self._active = peer.name
        need = now.batch_size - now.leftover
        lease = self._leases.to_yield(now, peer, need, need, versions, exact=True)
        return [] if lease is None else [(peer, lease)]

    def versions_of_next(self, now: Moment) -> tuple[int, int] | None:
        """The versions that score the next batch; None while it must wait."""
        is_early = now.num_assembled > now.steps_done + self._lag
        return None if is_early else self._versions.of_batch(now.num_assembled)
