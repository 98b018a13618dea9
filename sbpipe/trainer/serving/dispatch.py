"""The trainer's thread for all that is not training: selectors, leases, selections, weights on their way out.

It sees selectors only as peers of a port, so the same code runs over ZeroMQ, in one process, or under a port
that loses messages. It never touches the model: the loop tells it which step is done and which version is
out, and takes train batches when it wants them.
"""

import threading
import time
from collections.abc import Callable
from typing import Any

from sbpipe.config import Config
from sbpipe.errors import PeerLost
from sbpipe.link.messages import Goodbye, Heartbeat, Message
from sbpipe.link.ports import Port
from sbpipe.records import Part, Predicted, RunEnd, Selection, TrainBatch
from sbpipe.runs.events import EventLog
from sbpipe.runs.spans import Spans
from sbpipe.trainer.serving.claims import possible_selection
from sbpipe.trainer.serving.filling import ALONE, LATE, STARTING, Filling
from sbpipe.trainer.serving.peers import Peer
from sbpipe.trainer.serving.reception import Reception
from sbpipe.trainer.step_outcome import DivergedError
from sbpipe.trainer.stream import fleet
from sbpipe.trainer.stream.doubts import Doubt
from sbpipe.trainer.stream.fallback import PEER as FALLBACK
from sbpipe.trainer.stream.fallback import Fallback
from sbpipe.trainer.stream.fill import Filler
from sbpipe.trainer.stream.finite import FiniteScores
from sbpipe.trainer.stream.keep import KeepControl
from sbpipe.trainer.stream.pace import Pace
from sbpipe.trainer.stream.stream import Stream


class Dispatcher:
    """Runs the stream against the port; the loop and the loader call it from their threads."""

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
        self._events = events
        self._spans = spans
        self._fallback = Fallback(config, stream.order, stream.table, stream.sync)
        self._filler = Filler(stream, self._fallback)
        self._filling = Filling(events)
        self._pace = Pace()
        self._control = KeepControl(stream.keep, config.keep_bounds, stream.batch_size)
        self._finite = FiniteScores() if config.selection.traits.needs_scores else None
        self._changed = threading.Condition()
        self._num_waiting_for_quiet = 0
        self._failure: BaseException | None = None
        self._is_stopping = False
        self._is_paused = False
        self._paused_at = 0.0
        self._next_heartbeat = self._next_watch = 0.0
        self._alone_since = time.monotonic()
        self._announced = dict.fromkeys(Part, -1)
        self.num_fenced = 0
        self.num_fallback = 0
        self.most_selectors = 0
        self._num_ready = 0
        self._thread = threading.Thread(target=self._run, name="dispatch", daemon=True)

    # --- called by the loop and the loader --------------------------------------------------------

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
                left_s = self._time_to_fill(time.perf_counter())
                if left_s is None or left_s > 0.0 or not self._fill():
                    # What changes that is told: an answer, a step that begins, a loop that waits, an end.
                    self._changed.wait(left_s if left_s is None or left_s > 0.0 else None)
            if self._failure is not None:
                raise self._failure
            if not stream.has_next or self._is_stopping:
                return None
            batch = stream.ready.popleft()
            if not batch.is_fill.any():
                self._filling.whole(batch.step)
            return batch

    def loop_waits(self) -> None:
        """The loop has nothing to train on: whoever idles is given a lease now, or the batch is filled."""
        with self._changed:
            self._stream.wait()
            self._changed.notify_all()
        self._port.wake()

    def batch_started(self, asked_at: float, view_s: float) -> None:
        """The loop, which asked at `asked_at`, begins to train a batch that took `view_s` to load.

        It is time to lease the next.
        """
        with self._changed:
            self._pace.viewed(view_s)
            self._pace.started(time.perf_counter(), asked_at)
            if self._config.fills:
                self._stream.step_s, self._stream.ahead = self._pace.period_s, self._ahead()
            elif len(self._roster.peers) >= fleet.MANY:
                self._stream.step_s = self._pace.period_s
            self._stream.start()
            self._changed.notify_all()
        self._port.wake()

    def step_done(self, strength: float = 1.0, doubt: Doubt | None = None) -> None:
        """The loop has finished a step; leases granted from now on choose like this."""
        with self._changed:
            self._stream.finish_step(strength, doubt)
            self._follow_speed()
            # Without a clock nothing is granted for a step that has ended, and the next one, which calls the
            # thread, begins at once: a turn of it less on the loop's core.
            if self._config.is_clocked:
                self._port.wake()

    def take_predicted(self, step: int) -> list[Predicted]:
        """What selectors' models predicted in the selections up to the batch of this step."""
        return self._stream.predicted.take(step)

    def pause(self, deadline_s: float) -> None:
        """Grant nothing more and wait for what is out: time that does not count must gain nothing.

        A loop that never waits for selection waits for no more than a step here.
        """
        if self._config.fills:
            deadline_s = min(deadline_s, self._pace.period_s or deadline_s)
        with self._changed:
            self._is_paused, self._paused_at = True, time.perf_counter()
            self._wait_for(
                lambda: self._failure or self._is_stopping or not self._stream.ledger.out, deadline_s
            )

    def _wait_for(self, is_quiet: Callable[[], Any], deadline_s: float) -> bool:
        """Wait until what is out has come; whether it has."""
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
        """So much of the time since the last batch was no training."""
        with self._changed:
            self._pace.skip(seconds)

    @property
    def period_s(self) -> float | None:
        """What a step takes the loop if it never waits; None while it is not known."""
        return self._pace.period_s

    @property
    def filled(self) -> dict[str, int]:
        """Examples filled in because no selector was ready yet, none was left, or it was late."""
        totals = self._filling.totals
        return {"fill.starting": totals[STARTING], "fill.alone": totals[ALONE], "fill.late": totals[LATE]}

    def restored(self) -> None:
        """The stream goes on from a checkpoint: so does the keep rate."""
        self._control.restore(self._stream.keep)

    def state(self, deadline_s: float, *, is_last: bool) -> dict[str, Any]:
        """The stream's state at a step boundary; with a fixed lag, once nothing is on its way any more.

        A lease that is out was granted for weights of `lag` steps ago, which a resumed run no longer has.
        Without a lag it is simply granted again, and after the last step not at all. Raises TimeoutError if
        no selector answers in time.
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

    # --- under the lock: late batches and a keep rate that follows speed ---------------------------

    def _time_to_fill(self, now: float) -> float | None:
        """Seconds until the next batch must be whole; None = it may take its time."""
        stream = self._stream
        if not self._may_fill or stream.num_assembled > stream.num_started:
            return None  # the loop has yet to begin the batch before this one
        if stream.is_waiting:
            return 0.0
        fill_at = None if self._is_paused else self._pace.fill_at
        return None if fill_at is None else fill_at - now

    @property
    def _may_fill(self) -> bool:
        """Whether late batches are filled; with nobody to wait for, `selection.fallback` has its say."""
        waits = self._config.selection.fallback in ("wait", "fail")
        return self._config.fills and not (waits and not self._roster.ready())

    def _fill(self) -> bool:
        """Complete the next batch from the line; whether that was possible."""
        step = self._stream.num_assembled
        count = self._filler.fill()
        if count:
            reason = LATE if self._roster.ready() else ALONE if self._reception.num_admitted else STARTING
            self._filling.filled(step, count, reason)
        return count > 0

    def _ahead(self) -> float:
        speed = sum(self._rates())
        scoring_s = self._stream.batch_size / (self._stream.keep * speed) if speed else None
        return self._pace.ahead(scoring_s)

    def _rates(self) -> list[float]:
        """Candidates per second of the selectors that are ready, where known, and can be used at a time."""
        rates = [peer.rate for peer in self._roster.ready() if peer.rate]
        most = fleet.most_useful(batch_size=self._stream.batch_size, keep=self._stream.keep)
        return rates if len(rates) <= most else sorted(rates, reverse=True)[:most]

    def _follow_speed(self) -> None:
        rates = self._rates()
        change = self._control.update(self._stream.steps_done, self._pace.period_s, rates)
        if change is not None:
            self._stream.aim(change.new)
            self._events.write("keep", step=self._stream.steps_done, selectors=len(rates), **change._asdict())

    # --- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._is_stopping:
                messages = self._port.receive(self._config.link.heartbeat_s / 2)
                now = time.monotonic()
                # Processor time: what this thread costs the loop on a shared core, not how long it waited.
                with self._changed, self._spans.cpu_span("dispatch"):
                    for name, message in messages:
                        self._handle(name, message, now)
                    self._watch(now)
                    self._grant(now)
                    self._announce()
                    self._tell()
                # Outside the lock: a full socket must not hold up the loop.
                self._heartbeat(now)
        except BaseException as error:  # noqa: BLE001 - the top of a thread: the loop raises it again
            with self._changed:
                self._failure = error
                self._changed.notify_all()

    def _tell(self) -> None:
        """Wake who waits, but only for what it waits for: a batch, an end, nothing out, another roster."""
        stream, num_ready = self._stream, len(self._roster.ready())
        if (
            stream.has_next
            or stream.is_finished
            or self._num_waiting_for_quiet
            or num_ready != self._num_ready
        ):
            self._num_ready = num_ready
            self._changed.notify_all()

    def _handle(self, name: str, message: Message, now: float) -> None:
        if not isinstance(message, Selection):
            expired = self._reception.handle(name, message, now)
            if expired:
                self._expire(expired)
            return
        if not self._reception.heard(name, now):
            return
        peer = self._roster.peers[name]
        if not peer.is_ready:
            return  # it was granted nothing since it said hello
        if not peer.answers_its_own(message.lease_id):
            self._expire(self._reception.accuse(peer, "answered a lease that it was never granted"))
            return
        if peer.answers_again(message.lease_id):
            self.num_fenced += 1
            return
        message = possible_selection(message, now - peer.came_at)
        self._reception.told(peer, message.stats)
        peer.answered(message.stats, now, len(message.scores))
        with self._spans.span("receive"):
            reason = self._stream.accept(message)
        if self._finite is not None and not reason:
            self._judge_scores(self._finite, peer, message)
        if reason:
            peer.was_refused()
        if reason and message.lease_id not in self._filler.taken_back:
            self.num_fenced += 1
            self._events.write("fenced", selector=name, lease=message.lease_id, reason=reason)

    def _judge_scores(self, finite: FiniteScores, peer: Peer, selection: Selection) -> None:
        try:
            finite.see(selection.scores, self._stream.steps_done)
        except DivergedError as error:
            # A loop that goes on without this selector sees by its own losses whether that is true.
            if not self._goes_on_alone:
                raise
            self._expire(self._reception.turn_out(peer, str(error)))

    @property
    def _goes_on_alone(self) -> bool:
        return not self._config.is_clocked and self._config.selection.fallback not in ("wait", "fail")

    def _watch(self, now: float) -> None:
        # Many selectors' answers come by the thousand a second, and silence is measured in heartbeats.
        if now < self._next_watch:
            return
        self._next_watch = now + self._config.link.heartbeat_s / 10
        for name, reason in self._roster.complaints(now, self._stream.ledger.holders).items():
            self._reception.lose(name, reason)
            self._expire(name)
        if self._roster.ready():
            self._alone_since = now

    def _expire(self, name: str) -> None:
        count = self._stream.expire_peer(name)
        if count:
            self._events.write("expired", selector=name, leases=count)

    def _grant(self, now: float) -> None:
        peers = self._roster.ready()
        self.most_selectors = max(self.most_selectors, len(peers))
        if self._is_paused:
            return
        busy = self._stream.ledger.holders
        for peer, lease in self._stream.grant(peers):
            if not self._port.send(peer.name, lease):
                self._reception.lose(peer.name, "does not take messages")
                self._expire(peer.name)
                continue
            peer.owes(lease.lease_id)
            if peer.name not in busy:
                peer.begins(now)
        if not peers and not self._stream.is_finished:
            self._go_alone(now)

    def _go_alone(self, now: float) -> None:
        """No selector is there: wait for the first one, or do as `selection.fallback` says."""
        # Before the first selector there are no scores to fall back on, and the user is still starting it.
        fallback = self._config.selection.fallback if self._reception.num_admitted else "wait"
        if fallback == "fail":
            raise PeerLost("the last selector is gone and selection.fallback = 'fail'")
        if self._config.is_clocked:
            fallback = "wait"  # what a fallback chose would depend on when it began
        if self._may_fill:
            return
        alone_s = now - self._alone_since
        if fallback == "wait":
            if alone_s > self._config.link.wait_s:
                raise PeerLost(
                    f"no selector for {alone_s:.0f} s (link.wait_s). Start one with: sbpipe selector "
                    "--connect RUN_DIR"
                )
            return
        local = Peer(FALLBACK, "trainer", is_ready=True, needs_history=False)
        for _, lease in self._stream.grant([local]):
            selection, versions = self._fallback.answer(lease, self._stream.steps_done)
            self._stream.accept(selection, versions)
            self.num_fallback += 1

    def _announce(self) -> None:
        """Tell who pulls weights what there is; under a clock an exact lease tells."""
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
