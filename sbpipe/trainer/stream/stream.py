"""The stream of train batches: what to lease now, which answers count, what to train next. No thread, no
socket, no model.

It joins the ledger, the assembler, the score table and the counts of the run's progress. How much is leased
is decided by one of three: under a logical clock `clocked.py`, else `pipelined.py` for one selector and
`shares.py` for many.
"""

import math
from collections import Counter, deque
from typing import Any

from sbpipe.config import Config
from sbpipe.data import Order
from sbpipe.records import Classes, Floats, Ids, Lease, Selection, TrainBatch
from sbpipe.selection.doubt import passed_over
from sbpipe.trainer.pacing import SyncPace
from sbpipe.trainer.serving.peers import Peer
from sbpipe.trainer.stream import fleet
from sbpipe.trainer.stream.assembler import Accepted, Assembler
from sbpipe.trainer.stream.clocked import Clocked
from sbpipe.trainer.stream.doubts import Doubt
from sbpipe.trainer.stream.fallback import FILL
from sbpipe.trainer.stream.leases import Leases
from sbpipe.trainer.stream.ledger import Ledger
from sbpipe.trainer.stream.moment import Moment
from sbpipe.trainer.stream.pipelined import Pipelined
from sbpipe.trainer.stream.predictions import Predictions
from sbpipe.trainer.stream.score_kind import ScoreKind
from sbpipe.trainer.stream.scores import ScoreTable
from sbpipe.trainer.stream.shares import Shares
from sbpipe.trainer.stream.steered import Steered
from sbpipe.trainer.stream.stretches import Stretches
from sbpipe.trainer.stream.versions import Versions
from sbpipe.trainer.stream.yields import Yield


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
        is_entropy: bool = False,
    ) -> None:
        """`sync` may be changed by its owner during the run; `is_entropy`: the losses were found to be plain
        cross entropy of classes.
        """
        self.sync = sync or SyncPace.of(config)
        self.batch_size = config.train.batch_size
        self._num_steps, self._is_clocked = config.train.steps, config.is_clocked
        is_ended_by_candidates = not (config.train.steps or config.train.seconds)
        limit = math.ceil(config.train.epochs * num_examples) if is_ended_by_candidates else None
        self.ledger = Ledger(num_examples, limit)
        self.order = Order.of(config, num_examples)
        self.table = ScoreTable(
            num_examples,
            config.selection.history,
            irreducible=irreducible,
            classes=classes if config.selection.history_by == "class" else None,
            most_rows=config.selection.table,
        )
        self.versions = Versions(config, self.sync, has_fast_part=has_fast_part)
        self.yielded = Yield(config, num_examples)
        self.stretches = Stretches(config, limit)
        self.predicted = Predictions()
        self.kind = ScoreKind(config, is_entropy=is_entropy)
        self._steered = Steered(config)
        self.leases = Leases(
            config, self.ledger, self.order, self.table, self.stretches, self.yielded, self._steered
        )
        self._clocked = Clocked(config, self.ledger, self.versions, self.leases)
        without_clock = config, self.sync, self.ledger, self.versions, self.yielded, self.leases
        self._pipelined, self._shares = Pipelined(*without_clock), Shares(*without_clock)
        self._assembler = Assembler(self.batch_size)
        self._untrained: deque[tuple[TrainBatch, Ids]] = deque()
        self.ready: deque[TrainBatch] = deque()
        self.num_assembled = self.num_started = self.steps_done = 0
        self.num_passed_over = 0
        """Candidates passed over because their labels are probably wrong."""
        self.is_waiting = False
        self.keep = config.selection.keep_rate
        """The keep rate that leases aim at from now on."""
        self.step_s: float | None = None
        """The time of a step for a loop that does not wait; None = not known, or not needed."""
        self.ahead = 0.0
        """Train batches to lease on top of `depth - 1`."""

    # --- leases -----------------------------------------------------------------------------------

    @property
    def now(self) -> Moment:
        """The present state of the run."""
        return Moment(
            self.batch_size,
            self.num_assembled,
            self.num_started,
            self.steps_done,
            self.leftover,
            self.is_waiting,
            self.keep,
            self.step_s,
            self.ahead,
        )

    def grant(self, peers: list[Peer]) -> list[tuple[Peer, Lease]]:
        """The leases to send now, given the peers that are ready."""
        if not peers or self.has_enough_batches() or self.versions.published < 0:
            return []
        if self._is_clocked:
            return self._clocked.grant(peers, self.now)
        if len(peers) >= fleet.MANY:
            return self._shares.grant(peers, self.now)
        return self._pipelined.grant(peers[0], self.now)

    def has_enough_batches(self) -> bool:
        """Whether a run by steps needs no further batch."""
        return 0 < self._num_steps <= self.num_assembled

    def aim(self, keep: float) -> None:
        """Leases aim at another keep rate from now on."""
        self.yielded.aim(keep / self.keep)
        self.keep = keep

    def expire(self, lease_id: int) -> None:
        """Take a lease back."""
        self.ledger.expire(lease_id)

    def expire_peer(self, name: str) -> int:
        """Take back all leases of a peer; returns how many."""
        grants = self.ledger.leases_of(name)
        for grant in grants:
            self.ledger.expire(grant.lease.lease_id)
        return len(grants)

    # --- answers ----------------------------------------------------------------------------------

    def accept(self, selection: Selection, versions: Ids | None = None) -> str:
        """Accept a selection; "" if it counts, else why not. `versions` are per kept example, if
        they differ.
        """
        # An expired lease is granted again under another id, so a late answer to it finds nothing here.
        grant = self.ledger.out.get(selection.lease_id)
        if grant is None:
            return "the lease is not out"
        lease = grant.lease
        considered, num_kept = len(selection.scores), len(selection.kept)
        # The step that will train its last kept example, if everything on hand goes first.
        last_step = self.num_assembled + max(0, self.leftover + num_kept - 1) // self.batch_size
        is_stale = versions is not None
        fault = self.versions.fault(
            lease, selection, steps_done=self.steps_done, last_step=last_step, is_stale=is_stale
        )
        if fault:
            self.expire(selection.lease_id)
            return fault
        before = self.ledger.num_considered
        if self.ledger.select(selection.lease_id, considered, num_kept) is None:
            # Its selector answers a lease only once: nothing else would return these candidates to the line.
            self.expire(selection.lease_id)
            return "does not fit the lease"
        example_ids = self.order.ids(lease.epoch, lease.start, lease.start + considered)
        self.table.record(example_ids, selection)
        self.predicted.note(self.num_assembled, selection)
        self.kind.note(selection)
        is_fill = grant.peer == FILL
        if is_fill:
            self.yielded.fill(num_kept)
        else:
            is_over = passed_over(lease, selection.scores)
            self.num_passed_over += 0 if is_over is None else int(is_over.sum())
            self.yielded.count(considered, num_kept, is_selected=not lease.keep_all)
        self._assembler.add(
            Accepted(
                lease,
                selection,
                example_ids,
                versions=versions,
                arrived_at_step=self.steps_done,
                is_fill=is_fill,
                considered_before=before,
            )
        )
        self._assemble()
        return ""

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
        self._steered.begin(self.steps_done, strength)

    def finish_step(self, strength: float = 1.0, doubt: Doubt | None = None) -> None:
        """The oldest batch was trained; `strength` and `doubt` are those of leases granted from now on."""
        self.steps_done += 1
        self._steered.note(self.steps_done, strength, doubt)
        _, lease_ids = self._untrained.popleft()
        for lease_id, count in Counter(lease_ids.tolist()).items():
            self.ledger.train(lease_id, count)

    @property
    def has_next(self) -> bool:
        """Whether the batch after the one in training is whole; none further ahead is loaded."""
        return bool(self.ready) and self.ready[0].step <= self.num_started

    @property
    def is_finished(self) -> bool:
        """Whether no further batch will come."""
        return not self.ready and (self.has_enough_batches() or self.ledger.is_exhausted)

    @property
    def is_quiet(self) -> bool:
        """Under a logical clock: nothing is out and nothing can be granted before the next step."""
        return not self.ledger.out and (
            self._clocked.versions_of_next(self.now) is None
            or self.has_enough_batches()
            or self.ledger.is_exhausted
        )

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
            **self._steered.state(),
            "num_passed_over": self.num_passed_over,
            "ledger": self.ledger.state(),
            "waiting": waiting.state(),
            "table": self.table.state(),
            "predicted": self.predicted.state(),
            "kind": self.kind.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.steps_done = self.num_assembled = self.num_started = state["steps_done"]
        self.keep = state["keep"]
        self.yielded.restore(state["yielded"])
        self._steered.restore(state)
        self.num_passed_over = state.get("num_passed_over", 0)
        self.ledger.restore(state["ledger"])
        self.table.restore(state["table"])
        self.predicted.restore(state["predicted"])
        if "kind" in state:
            self.kind.restore(state["kind"])
        self._assembler.restore(state["waiting"])
        self._assemble()
