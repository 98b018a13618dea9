"""Leases without a clock, to one selector: what the next train batch lacks (`credit.py` says how it is
counted). No thread, no socket.
"""

import math

from sbpipe.config import Config
from sbpipe.records import Lease
from sbpipe.selection.draws import share_of
from sbpipe.trainer.pacing import SyncPace
from sbpipe.trainer.serving.peers import Peer
from sbpipe.trainer.stream import credit, fleet
from sbpipe.trainer.stream.leases import Leases
from sbpipe.trainer.stream.ledger import Ledger
from sbpipe.trainer.stream.moment import Moment
from sbpipe.trainer.stream.versions import Versions
from sbpipe.trainer.stream.yields import Yield


class Pipelined:
    """Grants one lease, or several short ones where batches are selected ahead."""

    def __init__(
        self,
        config: Config,
        sync: SyncPace,
        ledger: Ledger,
        versions: Versions,
        yielded: Yield,
        leases: Leases,
    ) -> None:
        self._sync, self._ledger, self._versions = sync, ledger, versions
        self._yielded, self._leases = yielded, leases
        self._chunk, self._fills = config.score_batch_size, config.fills

    def grant(self, peer: Peer, now: Moment) -> list[tuple[Peer, Lease]]:
        """The leases to send now."""
        granted = list[tuple[Peer, Lease]]()
        while (lease := self._next(peer, now)) is not None:
            granted.append((peer, lease))
            if not now.ahead:
                break
        return granted

    def _next(self, peer: Peer, now: Moment) -> Lease | None:
        # It may hold a second lease, so that it has work as soon as it has answered the first.
        num_held = self._ledger.num_held(peer.name)
        kept, most = self._lacking(now, is_idle=not num_held) if num_held < 2 else (0, 0)
        if kept < 1 or most < 1:
            return None
        if self._fills and peer.rate is None:
            # Its speed is not known yet: a lease for a whole batch could take it many steps, and its answer
            # would be as many steps old. Late batches are filled, so the loop does not wait for more.
            kept = min(kept, share_of(now.keep, fleet.LEAST))
        # A pass is scored whole before it is counted, so a lease may overshoot by up to one pass.
        most = min(most, kept + (math.ceil(self._a_pass) if now.ahead else self._chunk))
        versions = self._versions.least(peer, now.steps_done)
        return self._leases.to_yield(now, peer, min(kept, most), most, versions)

    def _lacking(self, now: Moment, *, is_idle: bool) -> tuple[int, int]:
        """The kept examples that the next lease should yield, and the most it may yield."""
        # While the loop waits, an idle selector gets a lease whatever others have out.
        out = [] if now.is_waiting and is_idle else self._ledger.out.values()
        kept = credit.kept_to_lease(
            batch_size=now.batch_size,
            depth=self._sync.depth,
            on_hand=now.on_hand,
            expected=sum(grant.expected_kept for grant in out),
            is_waiting=now.is_waiting,
            ahead=now.ahead,
            least=self._a_pass if now.ahead else math.inf,
        )
        if now.ahead:
            kept = min(kept, math.ceil(now.batch_size * credit.PIECE))
        batches = min(self._sync.depth, self._versions.reach(now.num_started))
        return kept, int(batches) * now.batch_size - now.on_hand - sum(grant.lease.most for grant in out)

    @property
    def _a_pass(self) -> float:
        """Kept examples of a scoring pass, about."""
        return self._chunk * self._yielded.rate
