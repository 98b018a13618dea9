"""A pipelined run whose selectors are behind a slow line, without threads, models or real time.

Leases and answers take `latency_s`; weights are announced, asked for and sent, one version at a time. The
trainer's stream is the real one, so what a forecast says of it can be compared to the digit.
"""

import bisect
from dataclasses import dataclass, field

import numpy as np

from sbpipe.config import Config
from sbpipe.records import Lease, Selection, SelectorStats
from sbpipe.trainer.serving.peers import Peer
from support.simulated import SimulatedRun, SimulatedSelector


@dataclass
class Line:
    """What a line does to messages and weights."""

    latency_s: float = 0.0
    transfer_s: float = 0.0
    """A snapshot's bytes, latency apart."""
    stall_s: float = 0.0
    """Every `stall_every_s`, nothing passes for so long."""
    stall_every_s: float = 0.0
    arrived: list[tuple[float, int]] = field(default_factory=lambda: [(0.0, 0)])
    """When which version was complete on the other side."""
    _free_at: float = 0.0
    _waiting: list[tuple[float, int]] = field(default_factory=list)

    def passed(self, sent_at: float) -> float:
        """When a message is there."""
        return self._through(sent_at + self.latency_s)

    def offer(self, version: int, now: float) -> None:
        """A version is published: it is announced, and pulled once the pull before it is done."""
        self._waiting.append((self.passed(now), version))

    def version_at(self, now: float) -> int:
        """The newest version that a selector has."""
        while self._waiting:
            begin = max(self._free_at, self._waiting[0][0])
            known = [version for told_at, version in self._waiting if told_at <= begin]
            if begin > now:
                break
            # The newest that was announced wins; a round trip, and the bytes.
            done_at = self._through(begin + 2 * self.latency_s + self.transfer_s)
            self.arrived.append((done_at, max(known)))
            self._waiting = self._waiting[len(known) :]
            self._free_at = done_at
        return self.arrived[bisect.bisect_right(self.arrived, (now, 1 << 60)) - 1][1]

    def _through(self, at: float) -> float:
        if not self.stall_s:
            return at
        rest = at % self.stall_every_s
        return at if rest >= self.stall_s else at - rest + self.stall_s


@dataclass
class FarSelector(SimulatedSelector):
    """Begins a lease when it has arrived, with the newest weights that have; its answer travels back."""

    line: Line = field(default_factory=Line)
    came_at: dict[int, float] = field(default_factory=dict)

    def take(self, lease: Lease, now: float) -> None:
        if not self.leases:
            self.peer.begins(now)
        self.leases.append(lease)
        self.came_at[lease.lease_id] = self.line.passed(now)

    def plan(self) -> tuple[float, int, np.ndarray]:
        lease = self.leases[0]
        kept = np.arange(lease.enough, dtype=np.int32)
        return self.line.passed(self._times(lease)[1]), lease.num_candidates, kept

    def _times(self, lease: Lease) -> tuple[float, float]:
        """When it begins a lease, and when it is done."""
        begin = max(self.free_at, self.came_at[lease.lease_id])
        if self._chance[0] != lease.lease_id:
            self._chance = (lease.lease_id, float(np.exp(self.rng.normal(0.0, self.jitter))), 0.0)
        return begin, begin + lease.num_candidates / self.speed * self._chance[1]

    def answer(self, version: int) -> Selection:
        arrives_at, considered, kept = self.plan()
        lease = self.leases[0]
        begin, self.free_at = self._times(lease)
        self.leases.pop(0)
        del self.came_at[lease.lease_id]
        self.busy_s += self.free_at - begin
        self.scored += considered
        stats = SelectorStats(scored=self.scored, score_s=self.busy_s)
        self.peer.answered(stats, arrives_at, considered)
        scores, chances = np.arange(considered, dtype=np.float32), np.full(considered, lease.keep, np.float32)
        return Selection(lease.lease_id, self.line.version_at(begin), scores, kept, chances, stats)


class FarRun(SimulatedRun):
    """A run with selectors of these speeds behind a line."""

    def __init__(
        self, config: Config, speeds: list[float], line: Line, *, step_s: float, view_s: float = 0.005
    ) -> None:
        super().__init__(config, [], step_s=step_s, view_s=view_s, num_examples=10**6)
        self.line, self._offered = line, 0
        for number, speed in enumerate(speeds):
            peer = Peer(str(number), "cpu", is_ready=True, pulls_weights=True)
            self.selectors.append(FarSelector(peer, speed, config.score_batch_size, True, line=line))

    def step(self) -> None:
        super().step()
        interval = self.stream.sync.interval
        if self.stream.steps_done % interval == 0:
            self.line.offer(self.stream.steps_done, self.now)
