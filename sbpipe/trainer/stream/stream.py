"""The stream of train batches: what to lease now, which answers count, what to train next. No thread, no
socket, no model.

The ledger, the assembler and the score table meet here. In pipelined mode leases are sized by credit; under a
logical clock (lockstep, fixed-lag, inline) one lease at a time fills one train batch with one exact version.
"""

import math
from collections import Counter, deque
from dataclasses import replace
from typing import Any

import numpy as np

from sbpipe.config import Config
from sbpipe.data import Order
from sbpipe.records import Classes, Floats, Ids, Lease, Predicted, Selection, TrainBatch
from sbpipe.selection.doubt import packed, passed_over
from sbpipe.selection.draws import share_of
from sbpipe.trainer.pacing import SyncPace
from sbpipe.trainer.serving.peers import Peer
from sbpipe.trainer.stream import credit, fleet
from sbpipe.trainer.stream.assembler import Assembler, Kept
from sbpipe.trainer.stream.doubts import Doubt, doubted
from sbpipe.trainer.stream.fallback import FILL
from sbpipe.trainer.stream.ledger import Grant, Ledger
from sbpipe.trainer.stream.scores import ScoreTable
from sbpipe.trainer.stream.stretches import Stretches
from sbpipe.trainer.stream.versions import Versions, fast_version_of
from sbpipe.trainer.stream.yields import Yield

_MOST_PREDICTED = 1024


class Stream:
    """Everything between the epoch order and the next train batch."""

    def __init__(
        self,
        config: Config,
        num_examples: int,
        classes: Classes | None = None,
        *,
        irreducible: Floats | None = None,
        has_fast_part: bool = True,
        sync: SyncPace | None = None,
    ) -> None:
        """`pace` is what the owner may change while the run goes on."""
        self._config = config
        self.sync = sync or SyncPace.of(config)
        self.batch_size = config.train.batch_size
        limit = (
            None
            if config.train.steps or config.train.seconds
            else math.ceil(config.train.epochs * num_examples)
        )
        self.ledger = Ledger(num_examples, limit)
        self.stretches = Stretches(config, limit)
        self.order = Order.of(config, num_examples)
        judged_by = classes if config.selection.history_by == "class" else None
        self.table = ScoreTable(
            num_examples,
            config.selection.history,
            irreducible=irreducible,
            classes=judged_by,
            most_rows=config.selection.table,
        )
        self._assembler = Assembler(self.batch_size)
        self._untrained: deque[tuple[TrainBatch, Ids]] = deque()
        self._active = ""
        self.ready: deque[TrainBatch] = deque()
        self.num_assembled = 0
        self.num_started = 0
        self.steps_done = 0
        self.versions = Versions(config, self.sync, has_fast_part=has_fast_part)
        self._strengths = {0: 1.0}
        """The strength after each of the last steps; the clock asks for the one of `lag` steps ago."""
        self._doubts: dict[int, Doubt | None] = {}
        """The same for what is done about wrong labels."""
        self.num_passed_over = 0
        """Candidates passed over because their labels are probably wrong."""
        self.predicted: deque[tuple[int, Predicted]] = deque(maxlen=_MOST_PREDICTED)
        """What selectors' models predicted in the last selections, for who wants to take it, each with the
        number of the batch that was being filled: under a clock it does not depend on when an answer arrives.
        """
        self.is_waiting = False
        self.keep = config.selection.keep_rate
        """The keep rate that leases aim at from now on."""
        self.step_s: float | None = None
        """What a step takes a loop that does not wait; None = not known, or nobody asks."""
        self.ahead = 0.0
        """Train batches to lease on top of `depth - 1`."""
        self.yielded = Yield(config.selection, num_examples)
        self._plan, self._planned_for = fleet.Plan({}, 0.0), (-1, 0, 0.0)

    # --- leases -----------------------------------------------------------------------------------

    def grant(self, peers: list[Peer]) -> list[tuple[Peer, Lease]]:
        """The leases to send now, given the peers that are ready."""
        if not peers or self.has_enough_batches() or self.versions.published < 0:
            return []
        if self._config.is_clocked:
            return self._grant_clocked(peers)
        if len(peers) >= fleet.MANY:
            return self._grant_fleet(peers)
        granted = list[tuple[Peer, Lease]]()
        while more := self._grant_pipelined(peers):
            granted += more
            if not self.ahead:
                break
        return granted

    def has_enough_batches(self) -> bool:
        """Whether a run by steps needs no further batch."""
        return bool(self._config.train.steps) and self.num_assembled >= self._config.train.steps

    def _grant_clocked(self, peers: list[Peer]) -> list[tuple[Peer, Lease]]:
        versions = self._clocked_versions()
        if self.ledger.out or versions is None:
            return []
        # One selector does all the work under a clock: its history grows as that of a single process would.
        # When it is lost, the next one is given the run's history with its first lease.
        peer = next((peer for peer in peers if peer.name == self._active), peers[0])
        peer.needs_history |= peer.name != self._active
        self._active = peer.name
        need = self.batch_size - len(self._assembler)
        return self._lease(peer, need, need, versions, exact=True)

    def _clocked_versions(self) -> tuple[int, int] | None:
        """Under a logical clock: what scores the next batch; None while it must wait."""
        is_early = self.num_assembled > self.steps_done + self._config.lag
        return None if is_early else self.versions.of_batch(self.num_assembled)

    def _grant_pipelined(self, peers: list[Peer]) -> list[tuple[Peer, Lease]]:
        depth, granted = self.sync.depth, list[tuple[Peer, Lease]]()
        a_pass = self._config.score_batch_size * self.yielded.rate  # what one keeps, about
        # Idle selectors share what is needed now; while all are busy, one may queue a second lease, so that
        # it finds work the moment it has answered the first.
        idle = [peer for peer in peers if not self.ledger.num_held(peer.name)]
        for peer in idle or [peer for peer in peers if self.ledger.num_held(peer.name) < 2][:1]:
            # While the loop waits, an idle selector does not wait for what slower ones have out.
            out = [] if self.is_waiting and peer in idle else list(self.ledger.out.values())
            needed = credit.kept_to_lease(
                batch_size=self.batch_size,
                depth=depth,
                on_hand=self.on_hand,
                expected=sum(grant.expected_kept for grant in out),
                is_waiting=self.is_waiting,
                ahead=self.ahead,
                least=a_pass if self.ahead else math.inf,
            )
            if self.ahead:
                needed = min(needed, math.ceil(self.batch_size * credit.PIECE))
            free = depth * self.batch_size - self.on_hand - sum(grant.lease.most for grant in out)
            others = max(1, len(idle) - len(granted))
            kept, room = math.ceil(needed / others), math.ceil(free / others)
            if kept < 1 or room < 1:
                break
            if self._config.fills and peer.rate is None:
                # Nobody knows how slow it is: a whole batch's lease could take it many steps, and its answer
                # would be as many steps old. Late batches are filled, so the loop does not wait for more.
                kept = min(kept, share_of(self.keep, fleet.LEAST))
            # A pass is scored whole before it is counted, so a lease may overshoot by up to one pass.
            most = min(room, kept + (math.ceil(a_pass) if self.ahead else self._config.score_batch_size))
            granted += self._lease(
                peer, min(kept, most), most, self.versions.least(peer, self.steps_done), exact=False
            )
        return granted

    def _grant_fleet(self, peers: list[Peer]) -> list[tuple[Peer, Lease]]:
        """Of many selectors: whole leases of each one's share, the idle and the fast ones first."""
        plan, ledger = self._plan_of(peers), self.ledger
        base = min(self.sync.depth, max(self.sync.depth - 1 + self.ahead, 1 if self.is_waiting else 0))
        bound = self._config.sync.max_staleness
        most_ahead = max(base, bound - self.sync.interval) if bound else math.inf
        # While the loop waits, idle selectors do not wait for what slower ones have out.
        expected = 0.0 if self.is_waiting else sum(grant.expected_kept for grant in ledger.out.values())
        coming = self.on_hand + expected
        # A depth of one says that nothing is to be scored while a step trains.
        target = max(base, plan.ahead + fleet.MARGIN) if self.sync.depth > 1 else base
        short = min(most_ahead, target) * self.batch_size - coming
        if short <= 0.0:
            return []
        able = [peer for peer in peers if ledger.num_held(peer.name) < (1 if self.is_waiting else 2)]
        # Who was never measured comes first, or would never be.
        able.sort(key=lambda peer: (ledger.num_held(peer.name), -(peer.rate or math.inf)))
        granted = list[tuple[Peer, Lease]]()
        for peer in able:
            candidates = plan.leases.get(peer.name, fleet.LEAST)
            # Whole leases, unless the next batch would not be whole.
            least = min(candidates * self.yielded.rate, self.batch_size) / 2
            if short <= 0.0 or (short < least and coming >= self.batch_size):
                break
            more = self._fleet_lease(peer, candidates)
            if not more:
                break
            granted += more
            kept = ledger.out[more[0][1].lease_id].expected_kept
            short, coming = short - kept, coming + kept
        return granted

    def _plan_of(self, peers: list[Peer]) -> fleet.Plan:
        """Made anew once a step, and for another number of selectors."""
        key = (self.num_started, len(peers), self.keep)
        if key != self._planned_for:
            given = self._config.selector.batch_size
            self._planned_for = key
            self._plan = fleet.plan(
                batch_size=self.batch_size,
                keep=self.keep,
                rates={peer.name: peer.rate for peer in peers},
                step_s=self.step_s,
                is_set=self._config.selection.traits.chooses_sets,
                least=given if isinstance(given, int) and given else fleet.LEAST,
            )
        return self._plan

    def _fleet_lease(self, peer: Peer, candidates: int) -> list[tuple[Peer, Lease]]:
        """A lease of so many candidates, all of which are considered."""
        keep_all, change_at = self.stretches.at(self.ledger.next_place, self.num_assembled)
        places = self.ledger.reach(min(candidates, credit.LONGEST), change_at)
        if places is None:
            return []
        count = places[1] - places[0]
        is_set = self._config.selection.traits.chooses_sets and not keep_all
        kept = share_of(self.keep, count) if is_set else count
        # Each of many sees a small part of the scores: what is ranked among them must be the run's.
        peer.needs_history |= not is_set and self._config.selection.traits.needs_scores
        expected = count if keep_all else kept if is_set else self.yielded.rate * count
        versions = self.versions.least(peer, self.steps_done)
        lease = self.put_out(peer.name, places, expected, enough=kept, most=kept, versions=versions)
        return [self._with_history(peer, lease)]

    def _with_history(self, peer: Peer, lease: Lease) -> tuple[Peer, Lease]:
        # The ledger's copy need not hold the history: only its first reader wants it.
        history, history_classes = self.table.history if peer.takes_history() else (None, None)
        if history is None:
            return peer, lease
        return peer, replace(lease, history=history, history_classes=history_classes)

    def _lease(
        self, peer: Peer, enough: int, most: int, versions: tuple[int, int], *, exact: bool
    ) -> list[tuple[Peer, Lease]]:
        keep_all, change_at = self.stretches.at(self.ledger.next_place, self.num_assembled)
        rate = 1.0 if keep_all else self.yielded.rate
        is_set = self._config.selection.traits.chooses_sets and not keep_all
        # What it can score in about a step's time, once both are known: a slow one answers as soon as others.
        # Not under a clock: a choice among fewer candidates is another choice, and speed does not repeat.
        most_in_time = peer.rate * self.step_s if peer.rate and self.step_s and not exact else math.inf
        if is_set:
            rate = self.keep
            candidates = credit.set_for(enough, rate, self._config.score_batch_size, most_in_time)
        else:
            candidates = credit.candidates_for(enough, rate, self._config.score_batch_size, most_in_time)
        places = self.ledger.reach(candidates, change_at)
        if places is None:
            return []
        if is_set:
            # An epoch's end, or a slow selector, cuts a set short: it yields its share, and no more.
            enough = most = min(enough, share_of(rate, places[1] - places[0]))
        expected = min(enough, rate * (places[1] - places[0]))
        lease = self.put_out(
            peer.name, places, expected, enough=enough, most=most, versions=versions, exact=exact
        )
        return [self._with_history(peer, lease)]

    def put_out(
        self,
        name: str,
        places: tuple[int, int],
        expected: float,
        *,
        enough: int,
        most: int,
        versions: tuple[int, int],
        exact: bool = False,
    ) -> Lease:
        """Grant these places to a peer."""
        epoch, start = divmod(places[0], self.ledger.num_examples)
        lease = Lease(
            lease_id=self.ledger.next_lease_id,
            epoch=epoch,
            start=start,
            stop=start + places[1] - places[0],
            enough=enough,
            most=most,
            version=versions[0],
            fast_version=versions[1],
            exact=exact,
            keep_all=self.stretches.at(places[0], self.num_assembled)[0],
            strength=self._strengths[self._steered_at],
            keep=self.keep,
        )
        doubt = self._doubts.get(self._steered_at)
        if doubt is not None and not lease.keep_all:
            lease = self._doubting(lease, doubt)
        self.ledger.grant(Grant(lease, name, *places, expected))
        return lease

    @property
    def _steered_at(self) -> int:
        """The step that steers a lease granted now; under a clock, the one `lag` steps before its batch."""
        return max(0, self.num_assembled - self._config.lag) if self._config.is_clocked else self.steps_done

    def _doubting(self, lease: Lease, doubt: Doubt) -> Lease:
        """The lease with its doubted candidates. Under a clock no other is out: what the table knows is a
        function of the clock too.
        """
        example_ids = self.order.ids(lease.epoch, lease.start, lease.stop)
        is_doubted, known = doubted(self.table, example_ids, doubt.above)
        # Who has no last score cannot be doubted: for these it stays as uniform as wrong labels ask.
        strength = lease.strength + known * (doubt.strength - lease.strength)
        return replace(lease, strength=strength, doubted=packed(is_doubted), doubt_above=doubt.above)

    # --- answers ----------------------------------------------------------------------------------

    def accept(self, selection: Selection, versions: Ids | None = None) -> str:
        """Take a selection in; "" if it counts, else why not. `versions` per kept example, if they differ."""
        # An expired lease is granted again under another id, so the late answer to it finds nothing here.
        grant = self.ledger.out.get(selection.lease_id)
        if grant is None:
            return "the lease is not out"
        lease = grant.lease
        considered, kept, num_kept = len(selection.scores), selection.kept, len(selection.kept)
        # The step that will train its last kept example, if everything on hand goes first.
        last_step = self.num_assembled + max(0, len(self._assembler) + num_kept - 1) // self.batch_size
        is_stale = versions is not None
        fault = self.versions.fault(
            lease, selection, steps_done=self.steps_done, last_step=last_step, is_stale=is_stale
        )
        if fault:
            self.expire(selection.lease_id)
            return fault
        before = self.ledger.num_considered
        if self.ledger.select(selection.lease_id, considered, num_kept) is None:
            return "does not fit the lease"
        example_ids = self.order.ids(lease.epoch, lease.start, lease.start + considered)
        self.table.record(example_ids, selection)
        if selection.predicted is not None:
            self.predicted.append((self.num_assembled, Predicted(selection.predicted, selection.places)))
        is_fill = grant.peer == FILL
        if not is_fill and (is_over := passed_over(lease, selection.scores)) is not None:
            self.num_passed_over += int(is_over.sum())
        if is_fill:
            self.yielded.fill(num_kept)
        else:
            self.yielded.count(considered, num_kept, is_selected=not lease.keep_all)
        fast_version = fast_version_of(lease, selection)
        self._assembler.add(
            Kept(
                example_ids=example_ids[kept],
                epochs=np.full(num_kept, lease.epoch),
                scores=selection.scores[kept],
                keep_probability=selection.keep_probability[kept],
                version=np.full(num_kept, selection.version) if versions is None else versions,
                fast_version=np.full(num_kept, fast_version) if versions is None else versions,
                arrived_at_step=np.full(num_kept, self.steps_done),
                target_keep=np.full(num_kept, lease.keep),
                is_fill=np.full(num_kept, is_fill),
                lease_ids=np.full(num_kept, lease.lease_id),
                ordinal=before + kept.astype(np.int64) + 1,
            )
        )
        self._assemble()
        return ""

    def aim(self, keep: float) -> None:
        """Leases aim at another keep rate from now on."""
        self.yielded.aim(keep / self.keep)
        self.keep = keep

    def expire(self, lease_id: int) -> None:
        """Take a lease back."""
        self.ledger.expire(lease_id)

    def expire_peer(self, name: str) -> int:
        """Take back all leases of a peer; how many."""
        grants = self.ledger.leases_of(name)
        for grant in grants:
            self.ledger.expire(grant.lease.lease_id)
        return len(grants)

    # --- batches ----------------------------------------------------------------------------------

    def _assemble(self) -> None:
        while (
            not self.has_enough_batches() and (taken := self._assembler.take(self.num_assembled)) is not None
        ):
            self._untrained.append(taken)
            self.ready.append(taken[0])
            self.num_assembled += 1

    def wait(self) -> None:
        """The loop has nothing to train on."""
        self.is_waiting = True

    def start(self) -> None:
        """The loop has begun to train the next batch."""
        self.num_started += 1
        self.is_waiting = False

    def begin(self, strength: float) -> None:
        """The strength of the leases before the first step."""
        self._strengths = {self.steps_done: strength}

    def finish_step(self, strength: float = 1.0, doubt: Doubt | None = None) -> None:
        """The oldest batch was trained; `strength` and `doubt` are those of leases granted from now on."""
        self.steps_done += 1
        self._strengths[self.steps_done], self._doubts[self.steps_done] = strength, doubt
        for known in (self._strengths, self._doubts):
            known.pop(self.steps_done - self._config.lag - 1, None)
        _, lease_ids = self._untrained.popleft()
        for lease_id, count in Counter(lease_ids.tolist()).items():
            self.ledger.train(lease_id, count)

    @property
    def has_next(self) -> bool:
        """Whether the batch is whole that comes after the one in training: none is loaded earlier."""
        return bool(self.ready) and self.ready[0].step <= self.num_started

    @property
    def is_finished(self) -> bool:
        """Whether no further batch will come."""
        return not self.ready and (self.has_enough_batches() or self.ledger.is_exhausted)

    @property
    def is_quiet(self) -> bool:
        """Under a logical clock: nothing is out and nothing can be granted before the next step."""
        return not self.ledger.out and (
            self._clocked_versions() is None or self.has_enough_batches() or self.ledger.is_exhausted
        )

    @property
    def on_hand(self) -> int:
        """Kept examples that wait to be trained: the queue."""
        return len(self._assembler) + (self.num_assembled - self.num_started) * self.batch_size

    @property
    def leftover(self) -> int:
        """Kept examples that do not fill a batch."""
        return len(self._assembler)

    # --- checkpoint -------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """For the checkpoint: batches not yet trained count as waiting, leases that are out as pending."""
        waiting = Assembler(self.batch_size)
        waiting.restore(self._assembler.state())
        waiting.put_back(list(self._untrained))
        return {
            "steps_done": self.steps_done,
            "keep": self.keep,
            "yielded": self.yielded.state(),
            "strengths": dict(self._strengths),
            "doubts": {step: doubt and tuple(doubt) for step, doubt in self._doubts.items()},
            "num_passed_over": self.num_passed_over,
            "ledger": self.ledger.state(),
            "waiting": waiting.state(),
            "table": self.table.state(),
            "predicted": [
                (number, *(None if counts is None else counts.tolist() for counts in told))
                for number, told in self.predicted
            ],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.steps_done = self.num_assembled = self.num_started = state["steps_done"]
        self.keep = state["keep"]
        self.yielded.restore(state["yielded"])
        self._strengths = dict(state["strengths"])
        self._doubts = {step: told and Doubt(*told) for step, told in state.get("doubts", {}).items()}
        self.num_passed_over = state.get("num_passed_over", 0)
        self.ledger.restore(state["ledger"])
        self.table.restore(state["table"])
        for number, *told in state["predicted"]:
            by_class, by_place = (None if counts is None else np.array(counts, np.int32) for counts in told)
            assert by_class is not None
            self.predicted.append((number, Predicted(by_class, by_place)))
        self._assembler.restore(state["waiting"])
        self._assemble()
