"""A pipelined run without threads, models or real time: a loop and selectors of known speed."""

from dataclasses import dataclass, field

import numpy as np

from sbpipe.config import Config
from sbpipe.records import Lease, Part, Selection, SelectorStats, TrainBatch
from sbpipe.runs.events import EventLog
from sbpipe.trainer.serving.following import SpeedFollower
from sbpipe.trainer.serving.peers import Peer, Roster
from sbpipe.trainer.stream.fallback import Fallback
from sbpipe.trainer.stream.fill import Filler
from sbpipe.trainer.stream.pace import Pace
from sbpipe.trainer.stream.stream import Stream


@dataclass
class SimulatedSelector:
    """Scores `speed` candidates per second, a pass at a time, and keeps the share that a lease asks for."""

    peer: Peer
    speed: float
    chunk: int
    is_set: bool = False
    leases: list[Lease] = field(default_factory=list)
    free_at: float = 0.0
    busy_s: float = 0.0
    scored: int = 0
    hard: float = 1.0
    """Share of the candidates that the model is wrong about; it is right about the others."""
    slowness: float = 1.0
    """Of a core that is taken away: it works for `cycle_s` at a time, one part of the time in so many."""
    cycle_s: float = 0.05
    jitter: float = 0.0
    """Scatter of the time that one lease takes."""
    delay_s: float = 0.0
    """Mean time until the trainer looks at an answer."""
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    _luck: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    """Of its own, so that how long things take does not depend on what is scored."""
    _debt: float = 0.0
    _chance: tuple[int, float, float] = (-1, 1.0, 0.0)

    def take(self, lease: Lease, now: float) -> None:
        if not self.leases:
            self.free_at = max(self.free_at, now)
            self.peer.begins(now)
        self.leases.append(lease)

    def plan(self) -> tuple[float, int, np.ndarray]:
        """When the first lease will be answered, how many candidates that takes, and which are kept."""
        lease, kept = self.leases[0], list[int]()
        if self.is_set and not lease.keep_all:
            done_at = self._worked(lease.num_candidates / self.speed)
            return done_at, lease.num_candidates, np.arange(lease.enough, dtype=np.int32)
        considered, debt = 0, self._debt
        while considered < lease.num_candidates and len(kept) < lease.enough:
            for position in range(considered, min(considered + self.chunk, lease.num_candidates)):
                debt += 1.0 if lease.keep_all else lease.keep
                considered = position + 1
                if debt >= 1.0:
                    debt -= 1.0
                    kept.append(position)
                if len(kept) == lease.most:
                    break
        return self._worked(considered / self.speed), considered, np.array(kept, np.int32)

    def _worked(self, seconds: float) -> float:
        """When so much work is done that begins when the selector is free."""
        lease_id = self.leases[0].lease_id
        if self._chance[0] != lease_id:
            scatter, delay_s = self.rng.normal(0.0, self.jitter), self.rng.exponential(self.delay_s)
            self._chance = (lease_id, float(np.exp(scatter)), float(delay_s))
        left = seconds * self._chance[1]
        if self.slowness == 1.0:
            return self.free_at + left
        # In time on its core, which is simple to add to, and back.
        round_s = self.cycle_s * self.slowness
        rounds, rest = divmod(self.free_at, round_s)
        rounds_more, rest = divmod(min(rest, self.cycle_s) + left, self.cycle_s)
        return (rounds + rounds_more) * round_s + rest

    def _on_core(self, now: float) -> float:
        """The first moment from `now` on when it has its core."""
        round_s = self.cycle_s * self.slowness
        return now if self.slowness == 1.0 or now % round_s < self.cycle_s else now + round_s - now % round_s

    def answer(self, version: int) -> Selection:
        begin = self._on_core(self.free_at)
        self.free_at, considered, kept = self.plan()
        lease = self.leases.pop(0)
        self._debt = (self._debt + considered * lease.keep) % 1.0
        # As spans see it: what it waits for a core before it begins is not work, what it is stopped in is.
        self.busy_s += self.free_at - begin
        self.scored += considered
        stats = SelectorStats(scored=self.scored, score_s=self.busy_s)
        self.peer.answered(stats, self.free_at + self._chance[2], considered)
        chances = np.full(considered, lease.keep, np.float32)
        luck = self._luck.random((2, considered))
        scores = luck[0] * np.where(luck[1] < self.hard, 1.0, 1e-3)
        return Selection(lease.lease_id, version, scores.astype(np.float32), kept, chances, stats)


class SimulatedRun:
    """A loop whose steps take `step_s` and whose batches take `view_s` to load."""

    def __init__(
        self, config: Config, speeds: list[float], *, step_s: float, view_s: float, num_examples: int = 10_000
    ) -> None:
        self.config, self.step_s, self.view_s = config, step_s, view_s
        self.stream = Stream(config, num_examples)
        self.stream.versions.offer(Part.WHOLE, 0)
        self.pace = Pace()
        self._roster = Roster(lost_after_s=np.inf, hung_after_s=np.inf)
        self._follower = SpeedFollower(
            config, self.stream, self._roster, self.pace, EventLog(None, "trainer")
        )
        self.filler = Filler(self.stream, Fallback(config, self.stream.order, self.stream.table))
        self.selectors = [self._selector(str(k), speed) for k, speed in enumerate(speeds)]
        self.now = self.waited_s = 0.0
        self.labels_look_wrong = False
        self.jitter, self._rng = 0.0, np.random.default_rng(0)
        self.batches: list[TrainBatch] = []
        self.changes: list[int] = []
        """The steps at which the keep rate changed."""

    def _selector(self, name: str, speed: float) -> SimulatedSelector:
        is_set = self.config.selection.traits.chooses_sets
        return SimulatedSelector(
            Peer(name, "cpu", is_ready=True), speed, self.config.score_batch_size, is_set
        )

    def join(self, speed: float) -> None:
        self.selectors.append(self._selector(str(len(self.selectors)), speed))

    def scatter(self, jitter: float, delay_s: float, seed: int) -> None:
        """From now on steps and leases scatter by so much, and answers are looked at late."""
        self.jitter, self._rng = jitter, np.random.default_rng(seed)
        for number, one in enumerate(self.selectors):
            one.jitter, one.delay_s, one.rng = jitter, delay_s, np.random.default_rng((seed, number))

    def resumed(self) -> "SimulatedRun":
        """Another process that goes on from here, with selectors like these."""
        speeds = [one.speed for one in self.selectors]
        again = SimulatedRun(self.config, speeds, step_s=self.step_s, view_s=self.view_s)
        again.stream.restore(self.stream.state())
        again.stream.versions.offer(Part.WHOLE, again.stream.steps_done)
        again._follower.restored()
        for one, before in zip(again.selectors, self.selectors, strict=True):
            one.hard = before.hard
        return again

    def step(self) -> None:
        """One step of the loop, and all that happens meanwhile."""
        self.stream.table.settle()
        asked_at = self.now
        whole_at = self._next_whole()
        self.now = max(asked_at, whole_at + self.view_s)
        self.waited_s += self.now - asked_at
        self.batches.append(self.stream.ready.popleft())
        self.pace.viewed(self.view_s)
        self.pace.started(self.now, asked_at)
        self._call_the_roll()
        self._follower.batch_started()
        self.stream.start()
        self._whole_at: float | None = None
        step_s = self.step_s * float(np.exp(self._rng.normal(0.0, self.jitter)))
        end, fill_at = self.now + step_s, self.pace.fill_at
        self._grant()
        if fill_at is not None and fill_at < end:
            self._run_selectors(fill_at)
            self._fill_if_short(max(fill_at, self.now))
        self._run_selectors(end)
        self.now = end
        self.stream.finish_step()
        self.stream.versions.offer(Part.WHOLE, self.stream.steps_done)
        before = self.stream.keep
        self._call_the_roll()
        self._follower.step_done(labels_look_wrong=self.labels_look_wrong)
        if self.stream.keep != before:
            self.changes.append(self.stream.steps_done)
        self._grant()

    def _call_the_roll(self) -> None:
        here = {one.peer.name: one.peer for one in self.selectors}
        for name in self._roster.peers.keys() - here.keys():
            self._roster.remove(name)
        for name in here.keys() - self._roster.peers.keys():
            self._roster.add(here[name])

    def _next_whole(self) -> float:
        whole_at = getattr(self, "_whole_at", None)
        if whole_at is None and not self.stream.ready:
            self.stream.wait()
            self._grant()
            self._fill_if_short(self.now)
            whole_at = self.now
        return self.now - self.view_s if whole_at is None else whole_at

    def _fill_if_short(self, now: float) -> None:
        if self.stream.num_assembled == self.stream.num_started:
            assert self.filler.fill() > 0
            self._whole_at = now

    def _run_selectors(self, until: float) -> None:
        while True:
            busy = [one for one in self.selectors if one.leases]
            first = min(busy, key=lambda one: one.plan()[0], default=None)
            if first is None or first.plan()[0] > until:
                return
            now = first.plan()[0]
            before = self.stream.num_assembled
            assert self.stream.accept(first.answer(self.stream.versions.published)) == ""
            if self.stream.num_assembled > before == self.stream.num_started:
                self._whole_at = now
            self._grant(now)

    def _grant(self, now: float | None = None) -> None:
        for peer, lease in self.stream.grant([one.peer for one in self.selectors]):
            one = next(one for one in self.selectors if one.peer is peer)
            one.take(lease, self.now if now is None else now)

    def run(self, steps: int) -> "Stretch":
        """So many steps; what they were like."""
        begin, busy, first, waited = self.now, self._busy(), len(self.batches), self.waited_s
        for _ in range(steps):
            self.step()
        elapsed = self.now - begin
        filled = float(np.mean([batch.is_fill.mean() for batch in self.batches[first:]]))
        stale = [
            (batch.step - batch.version)[~batch.is_fill]
            for batch in self.batches[first:]
            if not batch.is_fill.all()
        ]
        return Stretch(
            busy=(self._busy() - busy) / (elapsed * max(1, len(self.selectors))),
            filled=filled,
            waited=(self.waited_s - waited) / elapsed,
            staleness=float(np.concatenate(stale).mean()) if stale else 0.0,
            stalest=int(np.concatenate(stale).max()) if stale else 0,
        )

    def _busy(self) -> float:
        return sum(one.busy_s for one in self.selectors)


@dataclass(frozen=True)
class Stretch:
    """Shares of the time, of the examples, and steps of staleness."""

    busy: float
    filled: float
    waited: float
    staleness: float
    stalest: int
