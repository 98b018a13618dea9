"""Making leases: the places of the line, and the terms for the answer.

How much a selector is leased is decided elsewhere (`clocked.py`, `pipelined.py`, `shares.py`); here it
becomes a `Lease` and is entered in the ledger. No thread, no socket.
"""

import math
from dataclasses import replace

from sbpipe.config import Config
from sbpipe.data import Order
from sbpipe.records import Lease
from sbpipe.selection.draws import share_of
from sbpipe.trainer.serving.peers import Peer
from sbpipe.trainer.stream import credit
from sbpipe.trainer.stream.doubts import doubting
from sbpipe.trainer.stream.ledger import Grant, Ledger
from sbpipe.trainer.stream.moment import Moment
from sbpipe.trainer.stream.scores import ScoreTable
from sbpipe.trainer.stream.steered import Steered
from sbpipe.trainer.stream.stretches import Stretches
from sbpipe.trainer.stream.yields import Yield


class Leases:
    """Takes places from the ledger and puts them out; None where no candidate is left."""

    def __init__(
        self,
        config: Config,
        ledger: Ledger,
        order: Order,
        table: ScoreTable,
        stretches: Stretches,
        yielded: Yield,
        steered: Steered,
    ) -> None:
        self._ledger, self._order, self._table = ledger, order, table
        self._stretches, self._yielded, self._steered = stretches, yielded, steered
        self._chunk = config.score_batch_size
        self._chooses_sets = config.selection.traits.chooses_sets
        self._needs_scores = config.selection.traits.needs_scores

    def to_yield(
        self,
        now: Moment,
        peer: Peer,
        enough: int,
        most: int,
        versions: tuple[int, int],
        *,
        exact: bool = False,
    ) -> Lease | None:
        """A lease that should yield `enough` kept examples."""
        keep_all, change_at = self._stretches.at(self._ledger.next_place, now.num_assembled)
        rate = 1.0 if keep_all else self._yielded.rate
        is_set = self._chooses_sets and not keep_all
        # What the selector can score in about a step's time, once both are known: then a slow one answers as
        # soon as others. Not under a clock: a choice among fewer candidates is another choice, and speed
        # varies.
        most_in_time = peer.rate * now.step_s if peer.rate and now.step_s and not exact else math.inf
        if is_set:
            rate = now.keep
            candidates = credit.set_for(enough, rate, self._chunk, most_in_time)
        else:
            candidates = credit.candidates_for(enough, rate, self._chunk, most_in_time)
        places = self._ledger.reach(candidates, change_at)
        if places is None:
            return None
        if is_set:
            # The end of an epoch, or a slow selector, cuts a set short: it yields its share, and no more.
            enough = most = min(enough, share_of(rate, places[1] - places[0]))
        expected = min(enough, rate * (places[1] - places[0]))
        lease = self.put_out(
            now,
            peer.name,
            places,
            expected,
            enough=enough,
            most=most,
            versions=versions,
            keep_all=keep_all,
            exact=exact,
        )
        return self._with_history(peer, lease)

    def of_length(self, now: Moment, peer: Peer, candidates: int, versions: tuple[int, int]) -> Lease | None:
        """A lease of up to `candidates` candidates, all of which are considered."""
        keep_all, change_at = self._stretches.at(self._ledger.next_place, now.num_assembled)
        places = self._ledger.reach(min(candidates, credit.LONGEST), change_at)
        if places is None:
            return None
        count = places[1] - places[0]
        is_set = self._chooses_sets and not keep_all
        kept = share_of(now.keep, count) if is_set else count
        # Each of many selectors sees few of the scores: it must rank among the run's history.
        peer.needs_history |= not is_set and self._needs_scores
        expected = count if keep_all else kept if is_set else self._yielded.rate * count
        lease = self.put_out(
            now, peer.name, places, expected, enough=kept, most=kept, versions=versions, keep_all=keep_all
        )
        return self._with_history(peer, lease)

    def put_out(
        self,
        now: Moment,
        name: str,
        places: tuple[int, int],
        expected: float,
        *,
        enough: int,
        most: int,
        versions: tuple[int, int],
        keep_all: bool,
        exact: bool = False,
    ) -> Lease:
        """Grant these places to a peer."""
        epoch, start = divmod(places[0], self._ledger.num_examples)
        strength, doubt = self._steered.at(now)
        lease = Lease(
            lease_id=self._ledger.next_lease_id,
            epoch=epoch,
            start=start,
            stop=start + places[1] - places[0],
            enough=enough,
            most=most,
            version=versions[0],
            fast_version=versions[1],
            exact=exact,
            keep_all=keep_all,
            strength=strength,
            keep=now.keep,
        )
        if doubt is not None and not keep_all:
            # Under a clock no other lease is out, so the table is a function of the clock too.
            example_ids = self._order.ids(lease.epoch, lease.start, lease.stop)
            lease = doubting(lease, doubt, self._table, example_ids)
        self._ledger.grant(Grant(lease, name, *places, expected))
        return lease

    def _with_history(self, peer: Peer, lease: Lease) -> Lease:
        # The ledger's copy need not hold the history: only the selector needs it.
        history, history_classes = self._table.history if peer.takes_history() else (None, None)
        if history is None:
            return lease
        return replace(lease, history=history, history_classes=history_classes)
