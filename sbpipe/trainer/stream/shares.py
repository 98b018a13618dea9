"""Leases without a clock, to many selectors: each gets whole leases of its share (`fleet.py` says why). No
thread, no socket.
"""

import math

from sbpipe.config import Config
from sbpipe.records import Lease
from sbpipe.trainer.pacing import SyncPace
from sbpipe.trainer.serving.peers import Peer
from sbpipe.trainer.stream import fleet
from sbpipe.trainer.stream.leases import Leases
from sbpipe.trainer.stream.ledger import Ledger
from sbpipe.trainer.stream.moment import Moment
from sbpipe.trainer.stream.versions import Versions
from sbpipe.trainer.stream.yields import Yield


class Shares:
    """Grants by a plan that is renewed once a step."""

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
        self._max_staleness = config.sync.max_staleness
        self._is_set = config.selection.traits.chooses_sets
        self._least = fleet.least_of(config)
        self._plan, self._planned_for = fleet.Plan({}, 0.0), (-1, 0.0)
        self._ranked, self._ranked_of = list[Peer](), list[Peer]()

    def grant(self, peers: list[Peer], now: Moment) -> list[tuple[Peer, Lease]]:
        """The leases to send now: the idle and the fast selectors first."""
        plan, ledger = self._plan_of(peers, now), self._ledger
        depth, bound = self._sync.depth, self._max_staleness
        base = min(depth, max(depth - 1 + now.ahead, 1 if now.is_waiting else 0))
        most_ahead = max(base, bound - self._sync.interval) if bound else math.inf
        most_ahead = min(most_ahead, self._versions.reach(now.num_started))
        # While the loop waits, idle selectors get leases whatever slower ones have out.
        expected = 0.0 if now.is_waiting else ledger.expected_kept
        coming = now.on_hand + expected
        # A depth of one means that nothing is scored while a step trains.
        target = max(base, plan.ahead + fleet.MARGIN) if depth > 1 else base
        short = min(most_ahead, target) * now.batch_size - coming
        if short <= 0.0:
            return []
        granted = list[tuple[Peer, Lease]]()
        for peer in ledger.with_room(self._ranked, 1 if now.is_waiting else 2):
            candidates = plan.leases.get(peer.name, fleet.LEAST)
            # Whole leases, unless the next batch would not be whole.
            least = min(candidates * self._yielded.rate, now.batch_size) / 2
            if short <= 0.0 or (short < least and coming >= now.batch_size):
                break
            versions = self._versions.least(peer, now.steps_done)
            lease = self._leases.of_length(now, peer, candidates, versions)
            if lease is None:
                break
            granted.append((peer, lease))
            kept = ledger.out[lease.lease_id].expected_kept
            short, coming = short - kept, coming + kept
        return granted

    def _plan_of(self, peers: list[Peer], now: Moment) -> fleet.Plan:
        """The plan of this step, for these selectors."""
        key = (now.num_started, now.keep)
        if key != self._planned_for or peers != self._ranked_of:
            self._planned_for, self._ranked_of = key, peers
            # Selectors that were never measured come first, or they never would be.
            self._ranked = sorted(peers, key=lambda peer: -(peer.rate or math.inf))
            self._plan = fleet.plan(
                batch_size=now.batch_size,
                keep=now.keep,
                rates={peer.name: peer.rate for peer in peers},
                step_s=now.step_s,
                is_set=self._is_set,
                least=self._least,
            )
        return self._plan
