"""The trainer's thread for all that is not training: selectors, leases, selections, weights on their way out.

It sees selectors only as peers of a port, so the same code runs over ZeroMQ, in one process, or under a port
that loses messages. It never touches the model: the loop tells it which step is done and which version is
published, and takes train batches when it wants them. `answers.py` handles messages, `leasing.py` sends
leases, `late.py` completes late batches; this file has the thread, and the lock that all of them share.
"""

import threading
import time
from collections.abc import Callable
from typing import Any

from sbpipe.config import Config
from sbpipe.link.messages import Goodbye, Heartbeat, Message
from sbpipe.link.ports import Port
from sbpipe.records import Part, RunEnd, TrainBatch
from sbpipe.runs.events import EventLog
from sbpipe.runs.spans import Spans
from sbpipe.trainer.serving.answers import Answers
from sbpipe.trainer.serving.following import SpeedFollower
from sbpipe.trainer.serving.late import LateBatches
from sbpipe.trainer.serving.leasing import Leasing
from sbpipe.trainer.serving.reception import Reception
from sbpipe.trainer.steering.steering import Terms
from sbpipe.trainer.stream.fallback import Fallback
from sbpipe.trainer.stream.pace import Pace
from sbpipe.trainer.stream.stream import Stream


class Dispatcher:
    """Runs the stream against the port; the loop and the feed call it from their threads."""

    def __init__(
        self,
        config: Config,
        stream: Stream,
        port: Port,
        reception: Reception,
        events: EventLog,
        spans: Spans,
    ) -> None:
        self._config = config
        self._stream = stream
        self._port = port
        self._reception = reception
        self._roster = reception.roster
        self._spans = spans
        fallback = Fallback(config, stream.order, stream.table, stream.sync)
        self._pace = Pace()
        self._follower = SpeedFollower(config, stream, self._roster, self._pace, events)
        self._late = LateBatches(config, stream, self._roster, self._pace, fallback, events)
        self._leasing = Leasing(
            config, stream, port, reception, self._late, fallback, events, now=time.monotonic()
        )
        self._answers = Answers(config, stream, reception, self._late, self._leasing.expire, events)
        self._changed = threading.Condition()
        self._num_waiting_for_quiet = 0
        self._failure: BaseException | None = None
        self._is_stopping = False
        self._is_paused = False
        self._paused_at = 0.0
        self._next_heartbeat = 0.0
        self._announced = dict.fromkeys(Part, -1)
        self._num_ready = 0
        self._thread = threading.Thread(target=self._run, name="dispatch", daemon=True)

    # --- called by the loop and the feed ----------------------------------------------------------

    def start(self) -> None:
        """Begin to listen."""
        self._thread.start()

    def next_batch(self) -> TrainBatch | None:
        """The next train batch; waits for it, or fills it when it is about to be late.

        None when the stream has ended or the run is being stopped.
        """
        stream = self._stream
        with self._changed:
            while not (self._failure or self._is_stopping or stream.has_next or stream.is_finished):
                left_s = self._late.time_left(time.perf_counter(), is_paused=self._is_paused)
                is_late = left_s is not None and left_s <= 0.0
                # A fill that adds nothing may have considered the last candidates: that is an end too.
                if is_late and (self._late.fill() or stream.is_finished):
                    continue
                # Every change of the condition notifies: an answer, a step that begins, a loop that waits,
                # an end.
                self._changed.wait(None if is_late else left_s)
            if self._failure is not None:
                raise self._failure
            if not stream.has_next or self._is_stopping:
                return None
            batch = stream.ready.popleft()
            self._late.taken(batch)
            return batch

    def loop_waits(self) -> None:
        """The loop has nothing to train on: idle selectors get leases now, or the batch is filled."""
        with self._changed:
            self._stream.wait()
            self._changed.notify_all()
        self._port.wake()

    def batch_started(self, asked_at: float, view_s: float) -> None:
        """The loop, which asked at `asked_at`, begins to train a batch that took `view_s` to load.

        Wakes the thread to lease the next one.
        """
        with self._changed:
            self._pace.viewed(view_s)
            self._pace.started(time.perf_counter(), asked_at)
            self._follower.batch_started()
            self._stream.start()
            self._changed.notify_all()
        self._port.wake()

    def step_done(self, terms: Terms) -> None:
        """The loop has finished a step; later leases are granted on these terms."""
        with self._changed:
            self._stream.finish_step(terms.strength, terms.doubt)
            self._follower.step_done(labels_look_wrong=terms.labels_look_wrong)
            # Without a clock the end of a step allows no new lease, and the next step, which wakes the
            # thread, begins at once: this saves a turn of the thread on the loop's core.
            if self._config.is_clocked:
                self._port.wake()

    def pause(self, deadline_s: float) -> None:
        """Grant no more leases and wait for those that are out: no selection in time that does not count.

        A loop that never waits for selection waits here for a step at the most.
        """
        if self._config.fills:
            deadline_s = min(deadline_s, self._pace.period_s or deadline_s)
        with self._changed:
            self._is_paused, self._paused_at = True, time.perf_counter()
            self._wait_for(
                lambda: self._failure or self._is_stopping or not self._stream.ledger.out, deadline_s
            )

    def _wait_for(self, is_quiet: Callable[[], Any], deadline_s: float) -> bool:
        """Wait until `is_quiet`; returns whether it is."""
        self._num_waiting_for_quiet += 1
        self._port.wake()
        try:
            return bool(self._changed.wait_for(is_quiet, deadline_s))
        finally:
            self._num_waiting_for_quiet -= 1

    def go_on(self) -> None:
        """Grant again."""
        with self._changed:
            self._is_paused = False
            self._pace.skip(time.perf_counter() - self._paused_at)
            self._changed.notify_all()
        self._port.wake()

    def leave_out(self, seconds: float) -> None:
        """Leave out this much of the time since the last batch: it was not training."""
        with self._changed:
            self._pace.skip(seconds)

    @property
    def period_s(self) -> float | None:
        """The time of a step for a loop that never waits; None while it is not known."""
        return self._pace.period_s

    @property
    def most_selectors(self) -> int:
        """The most selectors that were ready at one time."""
        return self._leasing.most_selectors

    def totals(self) -> dict[str, float]:
        """Counts that add up over resumes."""
        return {
            "lease.fenced": self._answers.num_fenced,
            "lease.fallback": self._leasing.num_fallback,
            **self._late.filled,
        }

    def restored(self) -> None:
        """The stream goes on from a checkpoint; so does the keep rate."""
        self._follower.restored()

    def state(self, deadline_s: float, *, is_last: bool) -> dict[str, Any]:
        """The stream's state at a step boundary; with a fixed lag, once no lease is out any more.

        A lease that is out was granted for weights of `lag` steps ago, which a resumed run no longer has.
        Without a lag it is granted again after a resume, and after the last step never. Raises TimeoutError
        if no selector answers in time.
        """
        must_wait = self._config.lag and not is_last
        with self._changed:
            if must_wait and not self._wait_for(lambda: self._failure or self._stream.is_quiet, deadline_s):
                raise TimeoutError(f"a lease was not answered within {deadline_s:.0f} s")
            if self._failure is not None:
                raise self._failure
            return self._stream.state()

    def stop(self, end: RunEnd, reason: str = "") -> None:
        """Say goodbye to every selector and end the thread."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
        self._port.wake()
        if self._thread.is_alive():
            self._thread.join(5.0)
        for name in list(self._roster.peers):
            self._port.send(name, Goodbye(end, reason))

    # --- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._is_stopping:
                messages = self._port.receive(self._config.link.heartbeat_s / 2)
                now = time.monotonic()
                # Processor time: the cost of this thread to the loop on a shared core, without its waits.
                with self._changed, self._spans.cpu_span("dispatch"):
                    self._take(messages, now)
                    self._leasing.watch(now)
                    self._leasing.grant(now, is_paused=self._is_paused)
                    self._announce()
                    self._tell()
                    # Once a turn: the answers of many selectors are written together.
                    self._stream.table.settle()
                # Outside the lock: a full socket must not hold up the loop.
                self._heartbeat(now)
        except BaseException as error:  # noqa: BLE001 - the top of a thread: the loop raises it again
            with self._changed:
                self._failure = error
                self._changed.notify_all()

    def _take(self, messages: list[tuple[str, Message]], now: float) -> None:
        if messages:
            # One span for a turn, not for each message: many selectors send thousands of answers a second.
            with self._spans.span("receive"):
                for name, message in messages:
                    self._answers.handle(name, message, now)

    def _tell(self) -> None:
        """Wake waiting threads, but only for what they wait for: a batch, an end, no lease out, a changed
        roster.
        """
        stream, num_ready = self._stream, len(self._roster.ready())
        if (
            stream.has_next
            or stream.is_finished
            or self._num_waiting_for_quiet
            or num_ready != self._num_ready
        ):
            self._num_ready = num_ready
            self._changed.notify_all()

    def _announce(self) -> None:
        """Announce new versions to selectors that pull weights; under a clock an exact lease names its
        version.
        """
        if self._config.is_clocked:
            return
        for part, version in self._stream.versions.offered.items():
            if version != self._announced[part]:
                self._announced[part] = version
                for peer in self._roster.peers.values():
                    if peer.pulls_weights:
                        self._reception.announce(peer.name, part, version)

    def _heartbeat(self, now: float) -> None:
        if now >= self._next_heartbeat:
            self._next_heartbeat = now + self._config.link.heartbeat_s
            for name in list(self._roster.peers):
                self._port.send(name, Heartbeat(self._stream.steps_done))
