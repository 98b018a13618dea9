"""Selectors without a device, many in one process: real ports and messages, work that is only waited for.

`python -m sbpipe.bench.scale.selectors RUN_DIR COUNT SPEED` serves the trainer of a run directory until it
says goodbye. SPEED is candidates per second of each, 0 = answers at once.
"""

import os
import sys
import threading
import time
from collections import deque
from dataclasses import replace
from pathlib import Path

import numpy as np

from sbpipe.config import LinkConfig
from sbpipe.link.connection import read_connection
from sbpipe.link.messages import Goodbye, Heartbeat, Hello, Ready, Welcome
from sbpipe.link.opening import open_selector_port
from sbpipe.records import Lease, Selection, SelectorStats
from sbpipe.selection import choose

FINGERPRINTS = {"data": "simulated", "model": "simulated"}
PASS = 64
"""Candidates that are scored at a time."""
_BEAT_S = 1.0


class Simulated:
    """One selector: scores a lease in so many seconds, and keeps the share that it asks for."""

    def __init__(self, run_dir: Path, number: int, speed: float) -> None:
        link = LinkConfig()
        self._port = open_selector_port(link, f"simulated-{number}", read_connection(run_dir))
        self._hello = Hello(f"simulated-{number}", "here", 1, "simulated", "fp32", "0")
        self._speed = speed
        self._chance = np.random.default_rng(number)
        self._leases: deque[Lease] = deque()
        self._busy_s, self._scored, self._answers = 0.0, 0, 0
        self._done: tuple[float, Selection] | None = None

    def serve(self) -> None:
        """Until a goodbye."""
        next_beat, is_welcome = 0.0, False
        while True:
            now = time.monotonic()
            if now >= next_beat:
                next_beat = now + _BEAT_S
                self._port.send(Heartbeat(self._answers, self._stats()) if is_welcome else self._hello)
            due = next_beat if self._done is None else min(next_beat, self._done[0])
            for message in self._port.receive(max(0.0, due - time.monotonic())):
                if isinstance(message, Goodbye):
                    self._port.close()
                    return
                if isinstance(message, Welcome) and not is_welcome:
                    is_welcome = True
                    self._port.send(Ready(FINGERPRINTS, pulls_weights=False, precision="fp32"))
                elif isinstance(message, Lease):
                    self._leases.append(message)
            self._work()

    def _work(self) -> None:
        while self._done is not None or self._leases:
            if self._done is None:
                self._done = self._begin(self._leases.popleft())
            if time.monotonic() < self._done[0]:
                return
            self._port.send(self._done[1])
            self._scored, self._busy_s = self._done[1].stats.scored, self._done[1].stats.score_s
            self._answers += 1
            self._done = None

    def _begin(self, lease: Lease) -> tuple[float, Selection]:
        """When the answer is due, and the answer: as `selector/answer.py` considers and cuts."""
        draws, considered = self._chance.random(lease.num_candidates), lease.num_candidates
        if lease.enough < lease.num_candidates and not lease.keep_all:  # a set, considered as a whole
            kept = np.sort(np.argsort(draws)[: lease.enough]).astype(np.int32)
        else:
            considered, kept = choose(draws < (1.0 if lease.keep_all else lease.keep), lease.most)
        scored = min(lease.num_candidates, -(-considered // PASS) * PASS)
        busy_s = scored / self._speed if self._speed else 0.0
        scores = self._chance.random(considered, np.float32)
        chances = np.full(considered, lease.keep, np.float32)
        # Totals as they will be when it is sent: what is under way is not scored yet.
        totals = replace(self._stats(), scored=self._scored + scored, score_s=self._busy_s + busy_s)
        selection = Selection(lease.lease_id, lease.version, scores, kept, chances, totals)
        return time.monotonic() + busy_s, selection

    def _stats(self) -> SelectorStats:
        return SelectorStats(precision="fp32", scored=self._scored, score_s=self._busy_s)


def main(run_dir: str, count: str, speed: str) -> None:
    """A thread for each."""
    # They stand for other machines: the trainer's threads come first.
    os.nice(10)
    each = [Simulated(Path(run_dir), number, float(speed)) for number in range(int(count))]
    threads = [threading.Thread(target=one.serve) for one in each]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:4])
