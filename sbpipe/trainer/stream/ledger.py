"""The lease ledger: which candidates of which epoch are pending, leased, selected or trained. Pure; knows no
socket and no clock.

Candidates form one endless line of places, epoch after epoch: place = epoch * num_examples + position. A
lease is a range of it inside one epoch. Every place is considered exactly once. What a lease did not consider
(because it expired, or ended at the last example it may keep) goes back to the front of the line, and an
answer to a lease that is no longer out is refused.
"""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from sbpipe.records import Lease


class Named(Protocol):
    """A possible holder of leases."""

    name: str


Holder = TypeVar("Holder", bound=Named)


@dataclass(frozen=True)
class Grant:
    """A lease that is out and the places it covers: PENDING → **LEASED** → SELECTED → TRAINED."""

    lease: Lease
    peer: str
    first: int
    last: int
    expected_kept: float


class Ledger:
    """The line of candidates, up to `limit` places (None = no end)."""

    def __init__(self, num_examples: int, limit: int | None) -> None:
        self.num_examples = num_examples
        self.limit = limit
        self.out: dict[int, Grant] = {}
        self.expected_kept = 0.0
        """The kept examples expected of all leases that are out; a running sum, because it is read at every
        turn.
        """
        self._held: dict[str, dict[int, Grant]] = {}
        self.num_considered = 0
        self.num_selected = 0
        self.num_trained = 0
        self.num_expired = 0
        self._next_place = 0
        # A heap: returned ranges are granted before the line goes on, lowest place first, so that an epoch
        # ends before the next begins and a resumed run grants in the same order.
        self._returned: list[tuple[int, int]] = []
        self.next_lease_id = 0
        self._untrained: dict[int, int] = {}

    @property
    def next_place(self) -> int:
        """The place the next lease begins at."""
        return self._returned[0][0] if self._returned else self._next_place

    @property
    def is_exhausted(self) -> bool:
        """Whether no candidate is left to lease or is out."""
        return (
            not self.out and not self._returned and self.limit is not None and self._next_place >= self.limit
        )

    def reach(self, count: int, stop_at: int | None = None) -> tuple[int, int] | None:
        """The places of a lease of up to `count` candidates, never across an epoch's end or `stop_at`.

        None when no candidates are left. Nothing is taken before they are granted.
        """
        first = self.next_place
        if self._returned:
            last = min(self._returned[0][1], first + count)
        else:
            last = first + count if self.limit is None else min(self.limit, first + count)
        last = min(last, (first // self.num_examples + 1) * self.num_examples)
        if stop_at is not None and first < stop_at:
            last = min(last, stop_at)
        return (first, last) if first < last else None

    def grant(self, grant: Grant) -> None:
        """Put a lease out: its places are those that `reach` gave, its id is `next_lease_id`."""
        if self._returned:
            _, end = heapq.heappop(self._returned)
            if grant.last < end:
                heapq.heappush(self._returned, (grant.last, end))
        else:
            self._next_place = grant.last
        self.out[grant.lease.lease_id] = grant
        self.expected_kept += grant.expected_kept
        self._held.setdefault(grant.peer, {})[grant.lease.lease_id] = grant
        self.next_lease_id = grant.lease.lease_id + 1

    def select(self, lease_id: int, considered: int, kept: int) -> Grant | None:
        """Enter a selection; None if its lease is not out (late, duplicate, invented) or is shorter than it
        claims.
        """
        grant = self.out.get(lease_id)
        if (
            grant is None
            or not 0 < considered <= grant.last - grant.first
            or kept > min(grant.lease.most, considered)
        ):
            return None
        self._end(lease_id)
        if considered < grant.last - grant.first:
            self._give_back(grant.first + considered, grant.last)
        self.num_considered += considered
        self.num_selected += 1
        if kept:
            self._untrained[lease_id] = kept
        else:
            self.num_trained += 1
        return grant

    def _give_back(self, first: int, last: int) -> None:
        if last == self._next_place:
            self._next_place = first  # simply move the end of the line back
        else:
            heapq.heappush(self._returned, (first, last))

    def train(self, lease_id: int, count: int) -> None:
        """`count` kept examples of a lease were trained on; the lease is done with its last one."""
        self._untrained[lease_id] -= count
        if self._untrained[lease_id] == 0:
            del self._untrained[lease_id]
            self.num_trained += 1

    def expire(self, lease_id: int) -> None:
        """Take back a whole lease that its holder failed to answer; it is granted again under another id."""
        self.take_back(lease_id)
        self.num_expired += 1

    def take_back(self, lease_id: int) -> None:
        """The same where the holder did nothing wrong: it is not counted as expired."""
        grant = self._end(lease_id)
        self._give_back(grant.first, grant.last)

    def _end(self, lease_id: int) -> Grant:
        """Remove a lease from those that are out."""
        grant = self.out.pop(lease_id)
        # Exactly 0 where nothing is out, so that rounding errors do not add up.
        self.expected_kept = self.expected_kept - grant.expected_kept if self.out else 0.0
        held = self._held[grant.peer]
        del held[lease_id]
        if not held:
            del self._held[grant.peer]
        return grant

    def leases_of(self, peer: str) -> list[Grant]:
        """The leases that a peer holds."""
        return list(self._held.get(peer, {}).values())

    def num_held(self, peer: str) -> int:
        """How many leases a peer holds."""
        return len(self._held.get(peer, ()))

    def with_room(self, peers: Sequence[Holder], most: int) -> Iterator[Holder]:
        """The peers that hold fewer than `most` leases, idle ones first, otherwise in the given order."""
        held = self._held
        # Idle peers in one pass, and the others only if they are reached: this runs at every answer, for many
        # peers.
        idle = [peer for peer in peers if peer.name not in held]
        yield from idle
        if most > 1:
            were_idle = {peer.name for peer in idle}  # they may have got a lease meanwhile
            busy = (peer for peer in peers if peer.name not in were_idle)
            yield from [peer for peer in busy if len(held.get(peer.name, ())) < most]

    @property
    def holders(self) -> set[str]:
        """The names of all holders of leases."""
        return set(self._held)

    def state(self) -> dict[str, Any]:
        """For the checkpoint: leases that are out count as pending."""
        pending = sorted([*self._returned, *((grant.first, grant.last) for grant in self.out.values())])
        return {
            "next_place": self._next_place,
            "pending": [list(span) for span in pending],
            "next_lease_id": self.next_lease_id,
            "counts": [self.num_considered, self.num_selected, self.num_trained, self.num_expired],
            "untrained": [[lease_id, count] for lease_id, count in self._untrained.items()],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self._next_place = state["next_place"]
        self._returned = [(first, last) for first, last in state["pending"]]
        heapq.heapify(self._returned)
        self.next_lease_id = state["next_lease_id"]
        self.num_considered, self.num_selected, self.num_trained, self.num_expired = state["counts"]
        self._untrained = dict(state["untrained"])
