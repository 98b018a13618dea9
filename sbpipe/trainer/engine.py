"""Everything between the epoch order and an optimizer step, without a loop of its own.

A loop, ours or a user's, asks for the next batch, weighs and trains it, hands the fresh losses back and says
that the step is done. Beside it the engine selects, prefetches, steers and publishes; it owns the state of
all that. It must not know run directories, checkpoints, evaluation, optimizers or the loop that drives it.

    batch = engine.next_batch(is_stopped)
    weigh = engine.weigher(batch)            # train on it: forward, losses * weigh(losses), backward, step
    engine.take_losses(batch, losses, targets)
    engine.finish_step(step)
"""

import contextlib
import math
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from sbpipe.config import Config, to_json
from sbpipe.link.messages import Welcome
from sbpipe.link.ports import Port
from sbpipe.machine.copies import Downloads
from sbpipe.machine.cores import NO_SPARE_CORES, SpareCores
from sbpipe.records import Manifest, Part, Predicted, RunEnd, TrainBatch
from sbpipe.runs.events import EventLog
from sbpipe.runs.spans import Spans
from sbpipe.selection import TrainedLosses
from sbpipe.trainer.after_step import AfterStep
from sbpipe.trainer.job import Job
from sbpipe.trainer.pacing import Pacer, SyncPace
from sbpipe.trainer.record.census import Census
from sbpipe.trainer.serving.dispatch import Dispatcher
from sbpipe.trainer.serving.feed import Feed
from sbpipe.trainer.serving.peers import Roster
from sbpipe.trainer.serving.reception import Reception
from sbpipe.trainer.steering.steering import Steering
from sbpipe.trainer.step import Weigh
from sbpipe.trainer.step_outcome import StepOutcome
from sbpipe.trainer.stream.stream import Stream
from sbpipe.trainer.stream.versions import Versions
from sbpipe.weights.publisher import Offered, Publisher
from sbpipe.weights.slots import Slots

QUIET_DEADLINE_S = 10.0
"""How long a pause or a checkpoint waits for leases that are out."""


class Engine:
    """Hands out train batches, takes their fresh losses, publishes weights, gives and takes its state."""

    def __init__(
        self,
        job: Job,
        port: Port,
        slots: Slots,
        events: EventLog,
        spans: Spans,
        *,
        trained: TrainedLosses | None = None,
    ) -> None:
        """`trained` is told the loss of every trained example (`infobatch`)."""
        config = job.config
        self.config, self._port, self._slots, self._spans = config, port, slots, spans
        self._needs_weights = config.selection.traits.needs_scores
        self.sync = SyncPace.of(config)
        """Interval and depth in use: the one place where they stand."""
        self.stream = Stream(
            config,
            job.num_examples,
            job.classes,
            irreducible=job.irreducible,
            has_fast_part=slots.fast is not None,
            sync=self.sync,
            is_entropy=job.is_entropy,
        )
        self.publisher = Publisher(
            job.model,
            job.manifest,
            slots,
            spans,
            list(Part) if config.is_clocked else [],
            _teller(self.stream.versions, port),
            # With a bound on staleness, fewer candidates are leased until the newest weights are out.
            urgent=[Part.WHOLE] if config.sync.max_staleness else [],
        )
        self.roster = _roster_of(config)
        self._is_on_host = all(tensor.device.type == "cpu" for tensor in job.model.state_dict().values())
        self._pacer = Pacer(config, self.sync, spans, self.roster, events)
        self._reception = Reception(
            port=port,
            roster=self.roster,
            welcome=_welcome(config, slots, job.manifest),
            fingerprints=job.fingerprints,
            publisher=self.publisher,
            is_clocked=config.is_clocked,
            events=events,
        )
        self._dispatcher = Dispatcher(config, self.stream, port, self._reception, events, spans)
        self._feed = Feed(self._dispatcher, job.examples, spans, job.device)
        self.census = Census(self.stream.table, job.classes, job.num_classes)
        self.steering = Steering(config, job.classes, events, trained, kind=self.stream.kind)
        self._terms = self.steering.terms
        self.after = AfterStep(spans)
        """Does the work that a step leaves behind; settle it before reading `steering`."""
        self._late: StepOutcome | None = None
        self._downloads: Downloads | None = None
        self.next_batch = self._feed.next
        """The next train batch with its inputs; None at the end. Takes an event that stops the wait, and a
        function that is called from time to time during it.
        """
        self.stream.begin(self._terms.strength)

    # --- beginning and end ------------------------------------------------------------------------

    def admit(self, name: str, device: str) -> None:
        """A selector that needs no handshake: one in this process."""
        self._reception.admit(name, device, time.monotonic())

    def begin(self) -> None:
        """Offer the initial weights; then `start`."""
        self.publisher.publish_all(0)

    def start(self, spare: SpareCores = NO_SPARE_CORES) -> None:
        """Begin to listen to selectors and to prepare batches, in threads on the spare cores."""
        with spare.for_threads():
            self._dispatcher.start()
            self._feed.start()
            # Not under a clock, where the next leases depend on it, nor on an accelerator, where losses are
            # late anyway.
            if spare and self._is_on_host and not self.config.is_clocked:
                self.after.start()

    def stop(self, end: RunEnd, reason: str = "") -> None:
        """Say goodbye to every selector; nothing is granted or prepared any more."""
        self._dispatcher.stop(end, reason)
        self._feed.stop()

    def close(self) -> None:
        """Release threads, sockets and shared memory; may be called after any failure."""
        self._feed.stop()
        self.after.stop()
        self.publisher.close()
        self._port.close()
        self._slots.close()

    # --- a step -----------------------------------------------------------------------------------

    @property
    def has_batch(self) -> bool:
        """Whether `next_batch` would return at once."""
        return not self._feed.is_empty

    def weigher(self, batch: TrainBatch) -> Weigh | None:
        """From the fresh losses of a batch to the weights of its examples; None = all count alike."""
        weigh = self.steering.weigher(batch)
        if weigh is None or not self.after.has_thread:
            return weigh

        def settled(losses: torch.Tensor) -> torch.Tensor:
            # Here and not before the step: there is a whole forward pass of time for it.
            self.after.settle()
            return weigh(losses)

        return settled

    def take_losses(self, batch: TrainBatch, losses: torch.Tensor, targets: Any) -> StepOutcome:
        """Take in the fresh losses of a batch, before its weights go anywhere; raises if they diverged.

        On an accelerator the losses of the step before are looked at: this step's are still being computed.
        """
        self.after.settle()
        told = targets if self.census.counts_by(targets) else torch.empty(0)
        if self._downloads is None and losses.device.type != "cpu":
            self._downloads = Downloads(losses.device)
        outcome = StepOutcome(
            batch,
            losses,
            told,
            self.census.class_counts,
            weights=self.steering.far_weights,
            downloads=self._downloads,
        )
        self.settle()
        self._late = outcome
        if outcome.is_here:
            self.settle()
        with self._spans.span("steer"):
            predicted = self.stream.predicted.take(batch.step)
            self.after.do(lambda: self._steer(outcome, predicted))
        return outcome

    def _steer(self, outcome: StepOutcome, predicted: Sequence[Predicted]) -> None:
        self.steering.observe(outcome, predicted)
        self._terms = self.steering.terms

    def settle(self, *, waits: bool = True) -> None:
        """Check the losses that were not checked yet; without `waits`, only if they have arrived."""
        if self._late is None or not (waits or self._late.has_come):
            return
        late, self._late = self._late, None
        late.check()

    def catch_up(self) -> None:
        """Between two steps, while the next batch is missing: publish what was due and had to be skipped."""
        self.publisher.catch_up()

    def finish_step(self, step: int, *, has_moved: bool = True) -> None:
        """`step` train batches are done: publish what is due, and let the next leases be granted.

        `has_moved` is False where the optimizer left the weights unchanged. Then nothing is published, except
        under a clock, which counts on every version.
        """
        if self._needs_weights and not has_moved and not self.config.is_clocked:
            pass
        elif self._needs_weights:
            self._publish(step)
        else:
            # nothing is scored: only the version number advances
            self.stream.versions.offer(Part.WHOLE, step)
        self._pacer.step_done()
        self._dispatcher.step_done(self._terms)

    def _publish(self, step: int) -> None:
        begin = time.thread_time()
        self.publisher.publish_due(step, self.intervals())
        # On an accelerator wall-clock time is right: the loop waits for the device, not for a core.
        if self._is_on_host:
            self._pacer.published(time.thread_time() - begin)

    def intervals(self) -> dict[Part, int]:
        """Steps between two publishes of each part of the weights; {} where the policy needs no scores."""
        return self.sync.intervals if self._needs_weights else {}

    def leave_out(self, seconds: float) -> None:
        """Leave out this much of the time since the last batch: it was not training."""
        self._dispatcher.leave_out(seconds)

    @property
    def period_s(self) -> float | None:
        """What a step takes the loop if it never waits; None while it is not known."""
        return self._dispatcher.period_s

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Grant no leases meanwhile: no selection in time that does not count.

        First waits for the leases that are out. That wait counts as the loop's: without the pause it would
        wait for them too.
        """
        with self._spans.aside("wait"):
            self._dispatcher.pause(QUIET_DEADLINE_S)
        try:
            yield
        finally:
            self._dispatcher.go_on()

    # --- state ------------------------------------------------------------------------------------

    def state(self, step: int, *, is_last: bool = False) -> dict[str, Any]:
        """For a checkpoint at a step boundary; `is_last`: no step will follow, so no lease has to be
        answered.

        Raises TimeoutError where a clock has to wait for a silent selector.
        """
        self.settle()
        self.after.settle()
        is_kept = self.config.is_clocked and self._needs_weights
        return {
            "stream": self._dispatcher.state(QUIET_DEADLINE_S, is_last=is_last),
            "steering": self.steering.state(),
            "published": self.publisher.state(step) if is_kept else {},
            "sync": vars(self.sync).copy(),
        }

    def restore(self, state: dict[str, Any], step: int) -> None:
        """Go on from a checkpoint of this step, in place of `begin`; the model has its weights already."""
        self.stream.restore(state["stream"])
        self._dispatcher.restored()
        self._pacer.restore(state.get("sync", {}))
        self.census.count_from_here()
        self.steering.restore(state["steering"])
        self._terms = self.steering.terms
        self.publisher.restore(state["published"], step)

    def totals(self) -> dict[str, float]:
        """Counts that add up over resumes."""
        return {
            **self.publisher.totals(),
            "sync.applied": int(self.roster.total(lambda stats: stats.applied)),
            "selector.scored": int(self.roster.total(lambda stats: stats.scored)),
            "selector.lost": self.roster.num_lost,
            "link.dropped": sum(self._port.dropped.values()),
            **self._dispatcher.totals(),
        }

    @property
    def most_selectors(self) -> int:
        """The most selectors that were ready at one time."""
        return self._dispatcher.most_selectors


def _teller(versions: Versions, port: Port) -> Offered:
    """What a publish calls: it tells the stream the version and, if late, wakes the dispatcher's thread."""

    def offered(part: Part, version: int, is_late: bool) -> None:
        versions.offer(part, version)
        # A publish at the end of a step need not wake the thread: under a clock the end of the step does,
        # without one the start of the next step.
        if is_late:
            port.wake()

    return offered


def _roster_of(config: Config) -> Roster:
    """The peers, without limits of patience for a selector of this process: it answers in the dispatcher's
    thread.
    """
    if config.is_one_process:
        return Roster(lost_after_s=math.inf, hung_after_s=math.inf)
    return Roster(lost_after_s=config.link.lost_after_s, hung_after_s=config.link.hung_after_s)


def _welcome(config: Config, slots: Slots, manifest: Manifest) -> Welcome:
    return Welcome(
        config=to_json(config),
        shared_memory=slots.path.name if slots.path else "",
        heartbeat_s=config.link.heartbeat_s,
        lost_after_s=config.link.lost_after_s,
        is_channels_last=manifest.is_channels_last,
    )
