"""The loop never waits: its rate beside that of a bare loop, with selectors that are slow, stopped or dead.

This process is the trainer: its loop has one core; a selector of its own process has another, with the
threads of the trainer that do not train. Stretches of steps in turn, so that both meet the same noise: some
through the engine, some bare, which train the same model on batches of the same size in a shuffled order,
loaded one ahead by a thread, without selection, publishing, steering or events. A selector is slowed down
from outside, by stopping and continuing its process: nothing in the product knows of it. A process of its own
does that, so that the trainer's core has no part in it.
"""

import itertools
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from sbpipe.bench.rows import Row, one_core
from sbpipe.config import Config, resolve
from sbpipe.data import Batch
from sbpipe.errors import PeerLost
from sbpipe.link.opening import Listener
from sbpipe.machine.cores import SpareCores
from sbpipe.machine.sync_needs import BUSY
from sbpipe.records import RunEnd
from sbpipe.runs.events import EventLog
from sbpipe.trainer.engine import Engine
from sbpipe.trainer.setup import Setup, prepare

COMMON = {
    "model.name": "small_resnet",
    "model.options": {"depth": 8},
    "train.steps": 10**6,
    "eval.every": 0.0,
    # Slowness is the subject: who is stopped now and then must not count as lost.
    "link.lost_after_s": 600.0,
    "link.hung_after_s": 600.0,
}
SLOW = "sbpipe.bench.slow_images:make"
"""Code that the selector of the bench may run."""
STEPS = 8
"""Steps in a stretch."""
LEAST_PAIRS, MOST_PAIRS, KNOWN = 9, 41, 0.01
"""Pairs of stretches: so many, and more until the standard error of their median is small enough."""
SETTLING = 50
"""Steps after which the keep rate must have settled."""
CYCLE_S = 0.005
"""How long a slowed selector works at a time: a small part of a step, for longer stops are bursts."""
LOW, BETWEEN = 0.27, 0.35
"""Keep rates that the selector is slowed down to: near the lower bound, and far from both."""
_THROTTLE = """
import os, signal, sys, time
pid, on_s, off_s = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
while True:
    time.sleep(on_s)
    os.kill(pid, signal.SIGSTOP)
    time.sleep(off_s)
    os.kill(pid, signal.SIGCONT)
"""
START_S = 120.0


def measure() -> list[Row]:
    """The ratio of rates in every case, the selector's load, and how soon keep follows its speed."""
    cores = os.sched_getaffinity(0)
    others = cores - {min(cores)} or cores
    with one_core():
        with _contest(resolve(COMMON), others) as contest:
            rows = _cases(contest)
        slow = resolve(COMMON | {"data.name": SLOW})
        with _contest(slow, others) as contest:
            contest.pipelined(STEPS)
            rows += contest.rows("selector bound by its loading")
    return rows


def _cases(contest: "Contest") -> list[Row]:
    contest.pipelined(SETTLING)
    rows = [*contest.rows("selector at full speed"), *contest.load("at full speed"), *_following(contest)]
    for factor in (5, 20):
        with contest.slowed(factor):
            contest.pipelined(STEPS)
            rows += contest.rows(f"selector {factor} x slower")
    contest.send(signal.SIGSTOP)
    rows += contest.rows("selector stopped")
    contest.send(signal.SIGKILL)
    rows += contest.rows("selector dead")
    return rows


def _following(contest: "Contest") -> list[Row]:
    """How soon keep follows a selector whose speed is halved and doubled, and its load between the bounds."""
    rate = contest.wanted_rate()
    with contest.slowed(max(1.0, LOW / rate)):
        contest.pipelined(2 * SETTLING)
        # What a selector is slowed down by is more than the share of its time: caches, and the switches.
        beyond = contest.wanted_rate() / max(LOW, rate)
    with contest.slowed(2.0 * max(1.0, LOW / rate)):
        rows = [contest.settling("half")]
    with contest.slowed(max(1.0, LOW / rate)):
        rows.append(contest.settling("twice"))
    with contest.slowed(max(1.0, BETWEEN / (beyond * rate))):
        contest.pipelined(SETTLING)
        rows += contest.load("slowed down")
    contest.pipelined(SETTLING)
    return rows


class Contest:
    """A trainer here, its selector elsewhere, and a bare loop over the same model."""

    def __init__(self, setup: Setup, engine: Engine, selector: "subprocess.Popen[bytes]") -> None:
        self._setup, self._engine, self._selector = setup, engine, selector
        self._step = 0
        self._waited_s = 0.0
        size, num_examples = setup.config.train.batch_size, setup.data.train.num_examples
        order = np.random.default_rng(0).permutation(num_examples)
        self._bare_ids = itertools.cycle(
            np.split(order, range(size, num_examples, size))[: num_examples // size]
        )
        self._loader = ThreadPoolExecutor(1)
        self._never = threading.Event()

    def send(self, number: signal.Signals) -> None:
        """Stop, continue or kill the selector."""
        self._selector.send_signal(number)

    def rows(self, what: str) -> list[Row]:
        """Stretches in turn; the ratio is the median of those of neighbours."""
        ratios, works, waits = list[float](), list[float](), list[float]()
        while len(ratios) < LEAST_PAIRS or (len(ratios) < MOST_PAIRS and error_of_median(ratios) > KNOWN):
            began_s = time.thread_time()
            bare_s, bare_work_s = self._bare(STEPS), time.thread_time() - began_s
            began_s, waited_s = time.thread_time(), self._waited_s
            seconds = self.pipelined(STEPS)
            ratios.append(bare_s / seconds)
            works.append((time.thread_time() - began_s) / bare_work_s)
            waits.append((self._waited_s - waited_s) / seconds)
        sys.stderr.write(f"  {what}: {', '.join(f'{ratio:.3f}' for ratio in ratios)}\n")
        rate, work = statistics.median(ratios), statistics.median(works)
        return [
            Row("waiting", f"rate against the bare loop, {what}", rate, "", at_least=0.98),
            Row("waiting", f"standard error of that rate, {len(ratios)} pairs", error_of_median(ratios), ""),
            # Less noise than the clock: what other processes take is not in it.
            Row("waiting", f"processor time of the loop against the bare one, {what}", work, ""),
            Row("waiting", f"loop waits, {what}", statistics.median(waits), "", at_most=0.01),
        ]

    def wanted_rate(self) -> float:
        """The keep rate that would make the selector busy at the speed it has now, whatever the bounds."""
        speed, period_s = sum(peer.rate or 0.0 for peer in self._engine.roster.ready()), self._engine.period_s
        assert period_s is not None
        return self._setup.config.train.batch_size / (BUSY * period_s * speed)

    def load(self, what: str) -> list[Row]:
        """The selector's share of busy time, which has a bar where the keep rate is at no bound."""
        begin, busy_s = time.perf_counter(), self._busy_s()
        self.pipelined(SETTLING)
        busy = (self._busy_s() - busy_s) / (time.perf_counter() - begin)
        keep, bounds = self._engine.stream.keep, self._setup.config.keep_bounds
        is_free = bounds is not None and bounds.usual < keep < bounds.most
        return [
            Row("waiting", f"keep rate that auto comes to, selector {what}", keep, ""),
            Row(
                "waiting",
                f"selector busy at that rate, {what}",
                busy,
                "",
                at_least=0.85 if is_free else None,
            ),
        ]

    def settling(self, what: str) -> Row:
        """Steps until the keep rate is where it stays, after the selector's speed has changed."""
        seen = []
        for _ in range(2 * SETTLING):
            self.pipelined(1)
            seen.append(self._engine.stream.keep)
        # Within the change that it ignores, of where it is at the end.
        moved = [step for step, keep in enumerate(seen) if abs(keep / seen[-1] - 1.0) > 0.15]
        steps = 1 + moved[-1] if moved else 0
        words = f"steps until keep settles at {what} the speed ({seen[0]:.2f} to {seen[-1]:.2f})"
        return Row("waiting", words, steps, "steps", at_most=SETTLING)

    @contextmanager
    def slowed(self, factor: float) -> Iterator[None]:
        """Let the selector work for one part in `factor` of the time."""
        if factor <= 1.0:
            yield
            return
        times = [str(CYCLE_S), str((factor - 1.0) * CYCLE_S)]
        throttle = subprocess.Popen([sys.executable, "-c", _THROTTLE, str(self._selector.pid), *times])
        os.sched_setaffinity(throttle.pid, os.sched_getaffinity(self._selector.pid))
        try:
            yield
        finally:
            throttle.kill()
            throttle.wait()
            self.send(signal.SIGCONT)

    def pipelined(self, steps: int) -> float:
        """Train through the engine; seconds."""
        begin = time.perf_counter()
        for _ in range(steps):
            asked = time.perf_counter()
            prepared = self._engine.next_batch(self._never)
            assert prepared is not None
            self._waited_s += time.perf_counter() - asked
            weigh = self._engine.weigher(prepared.batch)
            losses = self._setup.train_step(self._step, 0.5, prepared.inputs, prepared.targets, weigh)
            self._engine.take_losses(prepared.batch, losses, prepared.targets)
            self._step += 1
            self._engine.finish_step(self._step)
        return time.perf_counter() - begin

    def _bare(self, steps: int) -> float:
        """Train without any of it; seconds."""
        loading = self._loader.submit(self._load)
        loading.result()  # as the engine has one ready, too
        begin = time.perf_counter()
        for _ in range(steps):
            batch, loading = loading.result(), self._loader.submit(self._load)
            self._setup.train_step(self._step, 0.5, batch.inputs, batch.targets)
        seconds = time.perf_counter() - begin
        loading.result()
        return seconds

    def _load(self) -> Batch:
        return self._setup.data.train.batch(next(self._bare_ids), 0)

    def _busy_s(self) -> float:
        return self._engine.roster.total(lambda stats: stats.busy_s)


def error_of_median(values: Sequence[float]) -> float:
    """The standard error of the median of values that are normal but for a few far away."""
    middle = statistics.median(values)
    deviation = 1.4826 * statistics.median(abs(value - middle) for value in values)
    return math.sqrt(math.pi / 2.0 / len(values)) * deviation


@contextmanager
def _contest(config: Config, cores: set[int]) -> Iterator[Contest]:
    """A trainer and a selector that is ready; both are gone afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        setup, spare = prepare(config), SpareCores(cores)
        with spare.for_threads():
            listener = Listener(config.link)
        port = listener.port
        listener.announce(Path(folder))
        slots = setup.slots(port.session)
        engine = Engine(setup.job(), port, slots, EventLog(None, "trainer"), setup.spans)
        command = [sys.executable, "-m", "sbpipe", "selector", "--connect", folder, "--allow", SLOW]
        selector = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        # At once, before it has looked how many cores it has: it must not share the trainer's.
        os.sched_setaffinity(selector.pid, cores)
        try:
            engine.begin()
            engine.start(spare)
            _await_selector(engine)
            yield Contest(setup, engine, selector)
            engine.stop(RunEnd.FINISHED)
        finally:
            selector.send_signal(signal.SIGCONT)
            selector.kill()
            selector.wait()
            engine.close()
            listener.withdraw()


def _await_selector(engine: Engine) -> None:
    deadline = time.monotonic() + START_S
    while not engine.roster.ready():
        if time.monotonic() > deadline:
            raise PeerLost(f"the selector of the bench was not ready after {START_S:.0f} s")
        time.sleep(0.05)
