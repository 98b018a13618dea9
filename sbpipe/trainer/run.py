"""One run of the trainer, wired: from its parts and a port to a summary. Owns everything, decides little."""

import contextlib
import logging
import math
import signal
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np

from sbpipe.config import Config, digest, to_json, warnings_of
from sbpipe.errors import ConfigError, RunDirError
from sbpipe.link.messages import Welcome
from sbpipe.link.ports import Port
from sbpipe.records import RunEnd
from sbpipe.runs.directory import TRAINER_EVENTS, RunDir
from sbpipe.runs.events import EventLog
from sbpipe.runs.spans import Spans
from sbpipe.selection import TrainedLosses
from sbpipe.trainer.checkpoint import Checkpoints
from sbpipe.trainer.evaluation import Evaluation, evaluate
from sbpipe.trainer.loop import Loop
from sbpipe.trainer.record.accounts import Accounts
from sbpipe.trainer.record.census import Census
from sbpipe.trainer.record.telemetry import Telemetry
from sbpipe.trainer.record.thumbnails import leave_examples
from sbpipe.trainer.serving.dispatch import Dispatcher
from sbpipe.trainer.serving.feed import Examples, Feed
from sbpipe.trainer.serving.peers import Roster
from sbpipe.trainer.serving.reception import Reception
from sbpipe.trainer.setup import Setup
from sbpipe.trainer.steering.steering import Steering
from sbpipe.trainer.stream.stream import Stream
from sbpipe.weights import manifest as layout
from sbpipe.weights.leftovers import sweep
from sbpipe.weights.publisher import Publisher
from sbpipe.weights.slots import Slots

log = logging.getLogger("sbpipe.trainer")


def make_slots(setup: Setup, session: bytes, *, shared: bool) -> Slots:
    """Slots for snapshots: in shared memory where there is some, else private, and selectors pull.

    Under a logical clock a selector may still need the version of `lag` steps ago, so there are as many more
    slots.
    """
    num_slots = 3 + setup.config.lag
    num_bytes = setup.manifest.num_bytes
    fast = layout.fast_part(setup.manifest) if setup.config.fast_interval else None
    fast_bytes = fast.num_bytes if fast is not None else 0
    for name in sweep():
        log.info("removed %s from shared memory: its trainer is gone", name)
    if shared and setup.config.sync.shared_memory:
        try:
            return Slots.create(num_bytes, num_slots=num_slots, name=session.hex(), fast_bytes=fast_bytes)
        except OSError as error:
            log.warning("no shared memory (%s): selectors will pull weights over the wire", error)
    return Slots.create(num_bytes, num_slots=num_slots, fast_bytes=fast_bytes)


class TrainerRun:
    """A trainer from the first lease to the summary."""

    def __init__(
        self,
        setup: Setup,
        run_dir: RunDir,
        slots: Slots,
        port: Port,
        *,
        began: float,
        examples: Examples | None = None,
    ) -> None:
        config = setup.config
        self._setup = setup
        self._examples = examples or setup.data.train
        self._run_dir = run_dir
        self._slots = slots
        self._port = port
        self.events = EventLog(run_dir.path / TRAINER_EVENTS, "trainer")
        self._classes = setup.data.train.targets_of(np.arange(setup.data.train.num_examples))
        num_examples, has_fast_part = setup.data.train.num_examples, slots.fast is not None
        self.stream = Stream(
            config, num_examples, self._classes, irreducible=setup.irreducible, has_fast_part=has_fast_part
        )
        is_inline = config.is_one_process
        patience_s = math.inf if is_inline else config.link.lost_after_s
        self.roster = Roster(
            lost_after_s=patience_s, hung_after_s=math.inf if is_inline else config.link.hung_after_s
        )
        self._publisher = Publisher(
            setup.train_step.model, setup.manifest, slots, setup.spans, self._on_commit
        )
        self._fast = self._fast_publisher()
        self.reception = self._reception()
        self.dispatcher = Dispatcher(config, self.stream, port, self.reception, self.events, setup.spans)
        census = Census(self.stream.table, self._classes, setup.data.num_classes)
        is_judge = config.selection.policy == "infobatch"
        self.trained_losses = TrainedLosses(setup.data.train.num_examples) if is_judge else None
        self._steering = Steering(config, census, self.events, self.trained_losses)
        self.stream.begin(self._steering.proposal)
        batch_size = config.train.batch_size
        self._telemetry = Telemetry(
            self.events,
            setup.spans,
            self.stream,
            self.roster,
            census,
            batch_size=batch_size,
            process_began=began,
        )
        self._checkpoints = Checkpoints(run_dir.path / "checkpoints", config.checkpoint.keep)
        self._accounts = self._open_accounts(began)
        self.loop = self._loop(config, setup.spans)

    def _reception(self) -> Reception:
        return Reception(
            port=self._port,
            roster=self.roster,
            welcome=self._welcome(),
            fingerprints=self._setup.fingerprints,
            publisher=self._publisher,
            fast=self._fast,
            is_clocked=self._setup.config.is_clocked,
            events=self.events,
        )

    def _open_accounts(self, began: float) -> Accounts:
        return Accounts(
            setup=self._setup,
            telemetry=self._telemetry,
            publisher=self._publisher,
            fast=self._fast,
            roster=self.roster,
            dispatcher=self.dispatcher,
            port=self._port,
            checkpoints=self._checkpoints,
            events=self.events,
            began=began,
        )

    def _welcome(self) -> Welcome:
        setup = self._setup
        return Welcome(
            run_dir=str(self._run_dir.path),
            config=to_json(setup.config),
            shared_memory=self._slots.path.name if self._slots.path else "",
            heartbeat_s=setup.config.link.heartbeat_s,
            lost_after_s=setup.config.link.lost_after_s,
        )

    def _fast_publisher(self) -> Publisher | None:
        """Publishes the fast parts alone; None where they never go apart from the whole."""
        setup, manifest = self._setup, layout.fast_part(self._setup.manifest)
        if self._slots.fast is None or manifest is None:
            return None
        model, slots = setup.train_step.model, self._slots.fast
        return Publisher(model, manifest, slots, setup.spans, self._on_fast_commit, stage="publish_fast")

    def _loop(self, config: Config, spans: Spans) -> Loop:
        setup = self._setup

        def measure() -> Evaluation:
            return evaluate(
                setup.train_step.model,
                setup.loss,
                setup.data.test,
                batch_size=config.eval.batch_size,
                num_classes=setup.data.num_classes,
            )

        return Loop(
            config=config,
            train_step=setup.train_step,
            feed=Feed(self.dispatcher, self._examples, spans),
            dispatcher=self.dispatcher,
            publisher=self._publisher,
            fast=self._fast,
            telemetry=self._telemetry,
            steering=self._steering,
            checkpoints=self._checkpoints,
            spans=spans,
            evaluate=measure,
            total_candidates=self.stream.ledger.limit,
            num_examples=setup.data.train.num_examples,
            totals=self._accounts.totals,
        )

    def _on_commit(self, version: int) -> None:
        self.dispatcher.version_published(version)

    def _on_fast_commit(self, version: int) -> None:
        self.dispatcher.fast_version_published(
            version, is_late=self._fast is not None and self._fast.commits_late
        )

    def run(self, *, resume: bool) -> dict[str, Any]:
        """Train to the end and leave a summary; a stop leaves a checkpoint too."""
        self._say_start(self._setup.config)
        try:
            first_step = self._resume() if resume else self._begin()
            self.dispatcher.start()
            self.loop.feed.start()
            with _stop_on_signal(self.loop.is_stopped):
                return self._finish(self.loop.run(first_step))
        except BaseException as error:
            self.events.write("failed", error=str(error) or type(error).__name__)
            self.dispatcher.stop(RunEnd.FAILED, f"the trainer failed: {error}"[:200])
            raise
        finally:
            self.loop.feed.stop()
            self._checkpoints.wait()
            for publisher in (self._publisher, self._fast):
                if publisher is not None:
                    publisher.close()
            self._port.close()
            self._slots.close()
            for split in (self._setup.data.train, self._setup.data.score, self._setup.data.test):
                split.close()
            self.events.close()
            self._run_dir.close()

    def _say_start(self, config: Config) -> None:
        self.events.write(
            "start",
            mode=config.mode,
            policy=config.selection.policy,
            keep=config.selection.keep,
            interval=config.sync_interval,
            fast_interval=self.stream.versions.fast_interval,
            batch_size=config.train.batch_size,
            seed=config.seed,
            digest=digest(config),
            total_candidates=self.stream.ledger.limit,
            total_steps=config.train.steps or None,
            total_s=config.train.seconds or None,
            num_examples=self.stream.ledger.num_examples,
            num_classes=self._setup.data.num_classes,
            devices=config.num_devices,
        )
        for warning in warnings_of(config):
            self.events.write("warning", text=warning)
        if config.selection.history_by == "class" and self._classes is None:
            text = (
                "selection.history_by = 'class' has no effect: this data set does not tell classes before "
                "it is loaded"
            )
            log.warning("%s", text)
            self.events.write("warning", text=text)

    def _begin(self) -> int:
        self._publisher.publish(0, must=True)
        if self._fast is not None:
            self._fast.publish(0, must=True)
        return 0

    def _resume(self) -> int:
        state = self._checkpoints.load_newest()
        if state is None:
            log.info("no checkpoint yet in %s: starting from step 0", self._run_dir.path)
            self.events.write("resumed", step=0)
            return self._begin()
        if state["digest"] != digest(self._setup.config):
            raise RunDirError(
                f"the checkpoint in {self._run_dir.path} was written under other settings. Resume without "
                "changing them"
            )
        self.stream.restore(state["stream"])
        self._telemetry.census.count_from_here()
        self._accounts.before = state["totals"]
        self._telemetry.startup_before_s = state["totals"]["startup_s"]
        self.loop.resume(state)
        self.events.write("resumed", step=state["step"])
        log.info("resumed from step %d", state["step"])
        return int(state["step"])

    def _finish(self, ending: str) -> dict[str, Any]:
        numbers = {
            "train_s": self._telemetry.elapsed_s,
            **self._telemetry.summary(),
            **self._steering.summary(),
        }  # before anything that is not training
        step = self.stream.steps_done
        if step == 0 and ending == "finished":
            raise ConfigError(
                "train.epochs",
                self._setup.config.train.epochs,
                "the candidates kept did not fill one batch",
                "Train longer",
            )
        if ending == "finished" and not self.loop.is_stopped.is_set():
            self.loop.run_evaluation(step, self.stream.ledger.num_considered)
            numbers |= self._telemetry.evaluation_numbers()
        if step:
            self.loop.save_checkpoint(step)
            log.info("%s at step %d; a checkpoint is in %s", ending, step, self._run_dir.path / "checkpoints")
        self.dispatcher.stop(RunEnd(ending))
        self.loop.feed.stop()
        summary = self._accounts.summary(ending, numbers)
        self._telemetry.progress(1.0 if ending == "finished" else None, now=True)
        self._run_dir.write_summary(summary)
        self.events.write("summary", **summary)
        leave_examples(self._telemetry.census, self._run_dir.path, self._setup)
        return summary


@contextlib.contextmanager
def _stop_on_signal(is_stopped: threading.Event) -> Iterator[None]:
    """SIGINT and SIGTERM end the loop at the next step boundary; a second one ends it at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, _frame: object) -> None:
        if is_stopped.is_set():
            raise KeyboardInterrupt
        log.info("%s: stopping at the next step boundary", signal.Signals(number).name)
        is_stopped.set()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
