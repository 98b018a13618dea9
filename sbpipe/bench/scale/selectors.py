"""Selectors without a device, hundreds in one thread: real connections and messages, work that is waited for.

`python -m sbpipe.bench.scale.selectors RUN_DIR COUNT SPEED` serves the trainer of a run directory until it
says goodbye, and then writes how many bytes went over all connections, both ways, and how many leases were
answered. SPEED is candidates per second of each, 0 = answers at once.

They share the trainer's cores, and stand for machines that would not: so no thread for each, no queues, and
answers that are ready before they are asked for.
"""

import heapq
import itertools
import math
import os
import secrets
import select
import sys
import time
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from sbpipe.bench.scale.answers import STATS, Answer, Answers
from sbpipe.bench.scale.peer import Peer
from sbpipe.link.connection import read_connection
from sbpipe.link.frames import Body, decode, pack, seal
from sbpipe.link.messages import NO_SESSION, Goodbye, Heartbeat, Hello, Message, Ready, Welcome
from sbpipe.records import Lease

FINGERPRINTS = {"data": "simulated", "model": "simulated"}
_BEAT_S = 1.0


class _Work(NamedTuple):
    """A lease that is being scored."""

    lease: Lease
    answer: Answer
    ends_at: float


class Simulated:
    """One selector: scores a lease in so many seconds, and keeps the share that it asks for."""

    def __init__(self, path: Path, number: int, speed: float, answers: Answers) -> None:
        self.peer = Peer(path, secrets.token_hex(16).encode())
        self.is_done = False
        self._speed, self._answers = speed, answers
        self._session, self._sequence = NO_SESSION, itertools.count()
        self._hello = Hello(f"simulated-{number}", "here", 1, "simulated", "fp32", "0")
        self._leases: deque[Lease] = deque()
        self._work: _Work | None = None
        self._scored, self._score_s = 0, 0.0
        self.num_answers = 0

    def beat(self) -> None:
        """Send a sign of life; before the welcome, another hello."""
        if self._session == NO_SESSION:
            self._send(pack(self._hello))
        else:
            stats = replace(STATS, scored=self._scored, score_s=self._score_s)
            self._send(pack(Heartbeat(self.num_answers, stats)))

    def hear(self, now: float) -> float | None:
        """Read what has come; returns when it will send something, None = already known, or nothing yet."""
        was_idle = self._work is None
        for frames in self.peer.receive():
            envelope = decode(frames)
            self._take(envelope.session, envelope.message)
        return self.go_on(now) if was_idle else None

    def _take(self, session: bytes, message: Message) -> None:
        if isinstance(message, Lease):
            self._leases.append(message)
        elif isinstance(message, Welcome) and self._session == NO_SESSION:
            self._session = session
            self._send(pack(Ready(FINGERPRINTS, pulls_weights=False, precision=STATS.precision)))
        elif isinstance(message, Goodbye):
            self.is_done = True

    def go_on(self, now: float) -> float | None:
        """Answer what is due, and begin the next lease; returns when that is due, None = there is none."""
        while self._work is not None or self._leases:
            if self._work is None:
                lease = self._leases.popleft()
                answer = self._answers.to(lease)
                self._work = _Work(lease, answer, now + self._takes(answer.scored))
            if now < self._work.ends_at:
                return self._work.ends_at
            self._answer(self._work)
            self._work = None
        return None

    def _takes(self, candidates: int) -> float:
        return candidates / self._speed if self._speed else 0.0

    def _answer(self, work: _Work) -> None:
        self._scored += work.answer.scored
        self._score_s += self._takes(work.answer.scored)
        self.num_answers += 1
        self._send(work.answer.of(work.lease, self._scored, self._score_s))

    def _send(self, body: Body) -> None:
        self.peer.send(seal(body, session=self._session, sequence=next(self._sequence)))


def serve(each: list[Simulated]) -> None:
    """Serve until all have heard a goodbye, or the trainer is gone."""
    poller = select.epoll()
    by_descriptor = {one.peer.fileno(): one for one in each}
    for descriptor in by_descriptor:
        poller.register(descriptor, select.EPOLLIN)
    due, next_beat, order = list[tuple[float, int, Simulated]](), 0.0, itertools.count()
    while by_descriptor:
        now = time.monotonic()
        if now >= next_beat:
            next_beat = now + _BEAT_S
            for one in by_descriptor.values():
                one.beat()
        while due and due[0][0] <= now:
            one = heapq.heappop(due)[2]
            if (at := one.go_on(now)) is not None:
                heapq.heappush(due, (at, next(order), one))
        wait_s = min(next_beat, due[0][0] if due else math.inf) - time.monotonic()
        # Whole milliseconds, rounded up: 0 would spin through the last one.
        for descriptor, _ in poller.poll(math.ceil(1000 * max(0.0, wait_s)) / 1000):
            one = by_descriptor[descriptor]
            at = one.hear(time.monotonic())
            if at is not None:
                heapq.heappush(due, (at, next(order), one))
            if one.is_done:
                poller.unregister(descriptor)
                del by_descriptor[descriptor]
                one.peer.close()


def main(run_dir: str, count: str, speed: str) -> None:
    """All of them."""
    # They stand for other machines: the trainer's threads come first.
    os.nice(10)
    endpoint, answers = read_connection(Path(run_dir)).control, Answers()
    path = Path(endpoint.removeprefix("ipc://"))
    each = [Simulated(path, number, float(speed), answers) for number in range(int(count))]
    serve(each)
    sys.stdout.write(f"{sum(one.peer.num_bytes for one in each)} {sum(one.num_answers for one in each)}\n")


if __name__ == "__main__":
    main(*sys.argv[1:4])
