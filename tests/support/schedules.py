"""Random schedules of all that can go wrong between a trainer and its selectors, without threads and time.

Messages are delivered, dropped, doubled, delayed and overtaken (`link/faults.py` over `link/inline.py`);
selectors are killed, cut off and started; checkpoints are taken, and the trainer is killed and resumed from
the last one. Whatever the schedule, `check` holds. Run many of them with:

    PYTHONPATH=.:tests python -m support.schedules 10000
"""

import copy
import random
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from sbpipe.config import Config
from sbpipe.link.faults import FaultyPort
from sbpipe.link.inline import InlinePort
from sbpipe.link.messages import Message
from sbpipe.records import Ids, Lease, Part, Selection, TrainBatch
from sbpipe.trainer.serving.peers import Peer
from sbpipe.trainer.stream.fallback import Fallback
from sbpipe.trainer.stream.fill import Filler
from sbpipe.trainer.stream.stream import Stream
from support.runs import small

MODES: tuple[dict[str, Any], ...] = (
    {"selection__late": "fill"},
    {"selection__late": "fill", "sync__interval": 3, "sync__depth": 3},
    {"selection__late": "wait"},
    {"selection__late": "wait", "sync__depth": 4, "sync__max_staleness": 12},
    {"mode": "lockstep"},
    {"mode": "lockstep", "sync__interval": 3},
    {"mode": "fixed-lag", "sync__lag": 2},
    {"mode": "fixed-lag", "sync__lag": 1, "sync__interval": 2},
)
POLICIES: tuple[dict[str, Any], ...] = (
    {"selection__policy": "spread"},
    {"selection__policy": "sb"},
    {"selection__policy": "random", "selection__warmup": 13},
)
LENGTHS: tuple[dict[str, Any], ...] = (
    {"train__epochs": 2.5, "train__steps": 0},
    {"train__steps": 9},
)
BATCH_SIZE = 6
_MOST_ROUNDS = 20_000


@lru_cache
def config_of(mode: int, policy: int, length: int) -> Config:
    """One of the kinds of runs; made once, because checking settings takes longer than a schedule."""
    return small(
        **MODES[mode],
        **POLICIES[policy],
        **LENGTHS[length],
        train__batch_size=BATCH_SIZE,
        selector__batch_size=8,
    )


@dataclass
class Selector:
    """A selector behind a port that misbehaves; `silent` counts the rounds in which it said nothing."""

    peer: Peer
    port: FaultyPort
    silent: int = 0


@dataclass
class Lineage:
    """What has happened to a run and was not taken back by a resume."""

    places: list[tuple[int, int]]
    batches: list[TrainBatch]
    kept: int = 0
    """Examples that the accepted answers kept."""


class WatchedStream(Stream):
    """A stream that notes which answers it took, a selector's or its own."""

    lineage: Lineage

    def accept(self, selection: Selection, versions: Ids | None = None) -> str:
        """As the stream does."""
        grant = self.ledger.out.get(selection.lease_id)
        refused = super().accept(selection, versions)
        if not refused:
            assert grant is not None, "an answer to no lease was accepted"
            self.lineage.places.append((grant.first, grant.first + len(selection.scores)))
            self.lineage.kept += len(selection.kept)
        return refused


class Schedule:
    """One run and what befalls it, all drawn from a seed; `is_calm` lets nothing befall it."""

    def __init__(self, seed: int, *, is_calm: bool = False) -> None:
        self.seed, self.chance = seed, random.Random(seed)
        draw = self.chance.randrange
        self.config = config_of(draw(len(MODES)), draw(len(POLICIES)), draw(len(LENGTHS)))
        self.num_examples = self.chance.randint(20, 60)
        self._coin_seed = draw(1 << 30)
        self._faults = {name: 0.0 if is_calm else self.chance.choice((0.0, 0.1, 0.3)) for name in _FAULTS}
        self._num_moves = 0 if is_calm else self.chance.randint(20, 200)
        self._num_started = 0
        self.happened: Counter[str] = Counter()
        self.selectors: list[Selector] = []
        self.ports: list[FaultyPort] = []
        """Of all selectors there ever were."""
        self._dead: list[Selector] = []
        """Killed, or of an earlier session: what they sent may still arrive."""
        self._in_step: TrainBatch | None = None
        self._make_trainer()
        self._saved: tuple[dict[str, Any], dict[Part, int], Lineage] | None = None

    # --- the trainer ------------------------------------------------------------------------------

    def _make_trainer(self) -> None:
        self.stream = WatchedStream(self.config, self.num_examples)
        self.stream.lineage = Lineage([], [])
        self._filler = Filler(self.stream, Fallback(self.config, self.stream.order, self.stream.table))
        for part in self._parts:
            self.stream.versions.offer(part, 0)

    @property
    def _parts(self) -> tuple[Part, ...]:
        return (Part.WHOLE, Part.FAST) if self.stream.versions.fast_interval else (Part.WHOLE,)

    def grant(self) -> None:
        """Lease to who is there."""
        ports = {one.peer.name: one.port for one in self.selectors}
        for peer, lease in self.stream.grant([one.peer for one in self.selectors]):
            ports[peer.name].send(peer.name, lease)

    def deliver(self, one: Selector) -> None:
        """Take in what a selector has sent."""
        for _, message in one.port.receive(0.0):
            assert isinstance(message, Selection)
            one.silent = 0
            refused = self.stream.accept(message)
            self.happened["refused" if refused else "accepted"] += 1

    def step(self) -> None:
        """Begin or end a step, or complete a batch that is late."""
        stream = self.stream
        if self._in_step is not None:
            stream.lineage.batches.append(self._in_step)
            self._in_step = None
            stream.finish_step()
            self._publish()
        elif stream.ready:
            self._in_step = stream.ready.popleft()
            stream.start()
        elif not stream.is_finished:
            stream.wait()
            if self.config.fills and self.chance.random() < 0.5:
                self.happened["filled"] += self._filler.fill()

    def _publish(self) -> None:
        stream = self.stream
        if stream.steps_done % stream.sync.interval == 0:
            stream.versions.offer(Part.WHOLE, stream.steps_done)
        fast = stream.versions.fast_interval
        if fast and stream.steps_done % fast == 0:
            stream.versions.offer(Part.FAST, stream.steps_done)

    def checkpoint(self) -> None:
        """At a step's end; with a fixed lag, once nothing is on its way."""
        if self._in_step is None and (not self.config.lag or self.stream.is_quiet):
            self.happened["checkpoint"] += 1
            self._saved = copy.deepcopy(
                (self.stream.state(), self.stream.versions.offered, self.stream.lineage)
            )

    def kill_trainer(self) -> None:
        """The next one goes on from the last checkpoint; the wire drops what is of another session."""
        self.happened["trainer killed"] += 1
        self._in_step = None
        self._dead.clear()
        names = [one.peer.name for one in self.selectors]
        self._make_trainer()
        if self._saved is not None:
            state, offered, self.stream.lineage = copy.deepcopy(self._saved)
            self.stream.restore(state)
            for part in self._parts:
                # Under a clock the last snapshot is part of the checkpoint, else the model is published anew.
                version = offered[part] if self.config.is_clocked else self.stream.steps_done
                self.stream.versions.offer(part, version)
        self.selectors = [self._selector(name) for name in names]

    # --- the selectors ----------------------------------------------------------------------------

    def start_selector(self) -> None:
        """Another one comes."""
        if len(self.selectors) < 3:
            self.happened["selector started"] += 1
            self._num_started += 1
            self.selectors.append(self._selector(str(self._num_started)))

    def _selector(self, name: str) -> Selector:
        port = FaultyPort(InlinePort(self._answer, name), self.chance.randrange(1 << 30), **self._faults)
        self.ports.append(port)
        return Selector(Peer(name, "cpu", is_ready=True), port)

    def kill_selector(self) -> None:
        """One is lost for good; what it had sent may still arrive."""
        if self.selectors:
            self.happened["selector killed"] += 1
            one = self.selectors.pop(self.chance.randrange(len(self.selectors)))
            self.stream.expire_peer(one.peer.name)
            self._dead.append(one)

    def cut_off(self, one: Selector) -> None:
        """One counts as lost and comes back at once, as it was: its late answers come too."""
        self.happened["cut off"] += 1
        one.silent = 0
        self.stream.expire_peer(one.peer.name)

    def _answer(self, message: Message) -> list[Message]:
        assert isinstance(message, Lease)
        lease, coins = message, self._coins(message.epoch)[message.start : message.stop]
        if self.config.selection.traits.chooses_sets and not lease.keep_all:
            kept, considered = np.sort(np.argsort(coins)[: lease.enough]), lease.num_candidates
        else:
            kept = np.flatnonzero(coins < (1.0 if lease.keep_all else lease.keep))[: lease.enough]
            considered = int(kept[-1]) + 1 if len(kept) == lease.enough else lease.num_candidates
        versions = self.stream.versions
        version = lease.version if lease.exact else versions.published
        fast = lease.fast_version if lease.exact else max(version, versions.fast_published)
        scores = coins[:considered].astype(np.float32)
        chances = np.full(considered, lease.keep, np.float32)
        return [Selection(lease.lease_id, version, scores, kept.astype(np.int32), chances, fast_version=fast)]

    def _coins(self, epoch: int) -> Any:
        """One view, one coin: a pure function of epoch and position, whoever answers and however often."""
        return np.random.default_rng([self._coin_seed, epoch]).random(self.num_examples)

    # --- a schedule -------------------------------------------------------------------------------

    def run(self) -> "Schedule":
        """All that befalls the run, then quiet rounds until it ends."""
        self.start_selector()
        moves, weights = zip(*_MOVES.items(), strict=True)
        for move in self.chance.choices(moves, weights, k=self._num_moves):
            move(self)
        for _ in range(_MOST_ROUNDS):
            if self.stream.is_finished and self._in_step is None:
                return self
            self.round()
        raise AssertionError(f"schedule {self.seed} does not come to its end")

    def round(self) -> None:
        """What a healthy run does all the time; who is silent for long counts as lost."""
        if not self.selectors:
            self.start_selector()
        self.grant()
        for one in [*self.selectors, *self._dead]:
            one.silent += 1
            self.deliver(one)
        for one in self.selectors:
            if one.silent > 12 and self.stream.ledger.leases_of(one.peer.name):
                self.cut_off(one)
        self.step()

    def _deliver_some(self) -> None:
        everybody = [*self.selectors, *self._dead]
        if everybody:
            self.deliver(self.chance.choice(everybody))

    def _cut_some_off(self) -> None:
        if self.selectors:
            self.cut_off(self.chance.choice(self.selectors))


_FAULTS = ("drop", "duplicate", "delay", "reorder")
_MOVES: dict[Callable[[Schedule], None], int] = {
    Schedule.round: 10,
    Schedule.grant: 8,
    Schedule._deliver_some: 10,
    Schedule.step: 8,
    Schedule.checkpoint: 2,
    Schedule.kill_trainer: 1,
    Schedule.start_selector: 1,
    Schedule.kill_selector: 1,
    Schedule._cut_some_off: 1,
}
"""What may befall a run, with how often it does beside the others."""


def check(done: Schedule) -> None:
    """What must hold of a run that has come to its end, whatever befell it."""
    stream, lineage, where = done.stream, done.stream.lineage, f"schedule {done.seed}"
    considered = Counter(place for first, last in lineage.places for place in range(first, last))
    assert not considered or max(considered.values()) == 1, f"{where}: a candidate was considered twice"
    assert stream.ledger.num_considered == len(considered), f"{where}: the ledger counts others"
    if stream.ledger.limit is not None:
        assert sorted(considered) == list(range(stream.ledger.limit)), f"{where}: a candidate is missing"
    batches = lineage.batches
    assert [batch.step for batch in batches] == list(range(stream.steps_done)), f"{where}: steps"
    assert {len(batch.example_ids) for batch in batches} <= {BATCH_SIZE}, f"{where}: sizes"
    pairs = Counter(
        (int(epoch), int(example_id))
        for batch in batches
        for epoch, example_id in zip(batch.epochs, batch.example_ids, strict=True)
    )
    assert not pairs or max(pairs.values()) == 1, f"{where}: an example was trained twice in an epoch"
    chosen = {
        (place // done.num_examples, int(stream.order.ids(place // done.num_examples, k, k + 1)[0]))
        for place in considered
        for k in [place % done.num_examples]
    }
    assert pairs.keys() <= chosen, f"{where}: trained and never considered"
    on_hand = lineage.kept - len(batches) * BATCH_SIZE
    assert on_hand == stream.leftover, f"{where}: kept examples were lost"
    if done.config.train.steps:
        assert len(batches) == done.config.train.steps, f"{where}: another number of steps"


def trained_by(done: Schedule) -> list[tuple[list[int], list[int]]]:
    """Which examples each step trained, and which versions had scored them."""
    return [(batch.example_ids.tolist(), batch.version.tolist()) for batch in done.stream.lineage.batches]


def check_repeats(done: Schedule) -> None:
    """Under a logical clock nothing that befalls a run changes what it trains."""
    if done.config.is_clocked:
        calm = Schedule(done.seed, is_calm=True).run()
        assert trained_by(done) == trained_by(calm), f"schedule {done.seed}: another run than without trouble"


def main(count: int, first: int = 0) -> None:
    """Run so many schedules and say what happened in them."""
    happened: Counter[str] = Counter()
    for seed in range(first, first + count):
        done = Schedule(seed).run()
        check(done)
        check_repeats(done)
        happened += done.happened
        happened["clocked"] += done.config.is_clocked
        for port in done.ports:
            happened += port.seen
    told = ", ".join(f"{number} {name}" for name, number in happened.most_common())
    sys.stdout.write(f"{count} schedules hold: {told}\n")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
