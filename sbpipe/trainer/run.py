"""One run around the engine: events, evaluation, checkpoints, the loop, and the summary it leaves.

It must not know how examples are selected, nor by which selectors.
"""

import contextlib
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

from sbpipe.config import warnings_of
from sbpipe.errors import ConfigError, PeerLost, RankLost
from sbpipe.machine.cores import NO_SPARE_CORES, SpareCores
from sbpipe.records import RunEnd
from sbpipe.runs.directory import RunDir
from sbpipe.runs.events import EventLog
from sbpipe.runs.names.files import CHECKPOINTS
from sbpipe.trainer.card import card_of
from sbpipe.trainer.checkpoint import Beside, Checkpoints
from sbpipe.trainer.engine import Engine
from sbpipe.trainer.evaluation import Evaluation
from sbpipe.trainer.lineage import check_lineage, lineage_of
from sbpipe.trainer.loop import Loop
from sbpipe.trainer.record.accounts import Accounts, Trained
from sbpipe.trainer.record.telemetry import Telemetry
from sbpipe.trainer.record.thumbnails import leave_examples
from sbpipe.trainer.results import Results
from sbpipe.trainer.setup import Setup
from sbpipe.trainer.step import NotFinite
from sbpipe.trainer.step_outcome import DivergedError

log = logging.getLogger("sbpipe.trainer")


class TrainerRun:
    """A trainer from the first lease to the summary."""

    def __init__(
        self,
        setup: Setup,
        run_dir: RunDir,
        engine: Engine,
        events: EventLog,
        *,
        began: float,
        doing: Callable[[str], None] = lambda what: None,
        spare: SpareCores = NO_SPARE_CORES,
    ) -> None:
        """`began` is when the process began, on the performance counter: start-up counts too.

        `doing` is told again and again what the run does, so that a process waiting for its end sees
        progress. `spare` are the cores of all threads but the loop's.
        """
        config = setup.config
        self._setup, self._run_dir, self._engine, self._events = setup, run_dir, engine, events
        self._doing, self._spare = doing, spare
        self._telemetry = Telemetry(
            events,
            setup.spans,
            engine,
            process_began=began,
            messages_are_beside=bool(spare) or setup.device.type != "cpu",
        )
        with spare.for_threads():
            self._checkpoints = Checkpoints(
                run_dir.path / CHECKPOINTS,
                config.checkpoint.keep,
                on_piece=lambda: doing("writing a checkpoint"),
                warn=self._warn,
            )
        self._results = Results(config, run_dir, self._checkpoints)
        self._accounts = Accounts(
            config,
            Trained(setup.manifest, setup.device, setup.train_step.digest),
            setup.spans,
            self._telemetry,
            engine,
            events,
            began,
            run_dir.path,
            lambda: self._checkpoints.num_failed,
        )
        setup.train_step.before_backward = engine.after.go
        self._loop = Loop(
            config,
            engine,
            setup.train_step,
            self._telemetry,
            setup.spans,
            self._evaluate,
            self._save,
            lambda: self._checkpoints.is_due_again,
            doing,
        )

    def run(self, *, resume: bool) -> dict[str, Any]:
        """Train to the end and leave a summary; a stop leaves a checkpoint too."""
        with contextlib.ExitStack() as closing:
            # The last one first, and each of them whatever fails in another.
            closing.callback(self._run_dir.close)
            closing.callback(self._events.close)
            closing.callback(self._setup.data.close)
            closing.callback(self._engine.close)
            closing.callback(self._await_checkpoint)
            self._say_start()
            try:
                first_step = self._resume() if resume else self._begin()
                self._engine.start(self._spare)
                with _stop_on_signal(self._loop.is_stopped):
                    summary = self._finish(self._loop.run(first_step))
            except BaseException as error:
                self._fail(error)
                raise
        self._results.check(summary, is_finished=summary["status"] == RunEnd.FINISHED)
        return summary

    def _fail(self, error: BaseException) -> None:
        """Tell the selectors and the record how the run ended, and save what was trained, if it is sound."""
        self._events.write("failed", error=str(error) or type(error).__name__)
        try:
            if isinstance(error, PeerLost) and self._engine.stream.steps_done:
                # The weights are sound: only no selector is left to choose what comes next.
                step = self._engine.stream.steps_done
                self._warn(self._results.leave_weights(step, self._setup.train_step.state(), str(error)))
        finally:
            self._engine.stop(RunEnd.FAILED, f"the trainer failed: {error}"[:200])

    def _await_checkpoint(self) -> None:
        """A checkpoint that is being written is finished even if the run failed: it may be the only one.

        One that a lost rank was writing too cannot be finished; the run has failed by RankLost already.
        """
        with contextlib.suppress(RankLost):
            self._checkpoints.wait()

    def _warn(self, text: str) -> None:
        """In the log, and as an event, which `sbpipe run` shows."""
        log.warning("%s", text)
        self._events.write("warning", text=text)

    def _note(self, text: str) -> None:
        log.info("%s", text)
        self._events.write("note", text=text)

    def _say_start(self) -> None:
        config = self._setup.config
        self._telemetry.say_start()
        for warning in warnings_of(config):
            self._events.write("warning", text=warning)
        for note in self._setup.notes:
            self._note(note)
        if config.selection.history_by == "class" and not self._engine.census.knows_classes:
            self._warn(
                "selection.history_by = 'class' has no effect: this data set does not tell classes before it "
                "is loaded"
            )

    def _begin(self) -> int:
        self._engine.begin()
        return 0

    def _evaluate(self) -> Evaluation | None:
        setup = self._setup
        setup.train_step.before_evaluation()

        def goes_on() -> bool:
            self._doing("measuring the test error")
            # With a sharded model all ranks must go through the whole test split.
            return setup.train_step.is_sharded or not self._loop.is_stopped.is_set()

        return setup.evaluate(goes_on)

    # --- the run's state: gathered in `_state`, restored in `_restore` ----------------------------

    def _state(self, step: int, *, is_last: bool) -> tuple[dict[str, Any], Beside | None]:
        """The run's state, and what writes the shares of other ranks; raises if weights are not finite."""
        self._telemetry.flush()
        # Before the weights: it may raise, and other ranks that were told to write their shares would wait
        # for rank 0.
        engine = self._engine.state(step, is_last=is_last)
        others = {
            "engine": engine,
            "telemetry": self._telemetry.state(),
            "evaluated_at": self._loop.evaluated_at,
            "totals": self._accounts.totals(),
        }
        try:
            trained, beside = self._setup.train_step.checkpoint()
        except NotFinite:
            raise DivergedError("the weights are not finite", step) from None
        card = {"card": card_of(self._setup.config, self._setup.data)}
        return {**lineage_of(self._setup.config), **card, **trained, **others}, beside

    def _restore(self, state: dict[str, Any]) -> None:
        # Weights first: the engine offers them to selectors.
        self._setup.train_step.restore(state)
        self._engine.restore(state["engine"], state["step"])
        self._telemetry.restore(state["telemetry"], startup_s=state["totals"]["startup_s"])
        self._loop.evaluated_at = state["evaluated_at"]
        self._accounts.restore(state["totals"])

    def _save(self, step: int) -> None:
        """Write a checkpoint of a step boundary beside the loop."""
        # Wait for the last one first: then all ranks that write a share of it are free.
        self._checkpoints.wait()
        try:
            state, beside = self._state(step, is_last=False)
        except TimeoutError as error:
            self._warn(f"no checkpoint at step {step} ({error}); the last good one is kept")
            return
        self._checkpoints.save(step, state, beside)

    def _resume(self) -> int:
        # With a sharded model each rank reads only its own share.
        state = self._checkpoints.load_newest(is_whole=not self._setup.train_step.is_sharded)
        config = self._setup.config
        note = "" if state is None else check_lineage(state, config, self._run_dir.path)
        # Not before the check: a run that cannot be lengthened stays finished.
        self._run_dir.lengthen(config)
        if state is None:
            log.info("no checkpoint yet in %s: starting from step 0", self._run_dir.path)
            self._events.write("resumed", step=0)
            return self._begin()
        self._restore(state)
        self._events.write("resumed", step=state["step"])
        log.info("resumed from step %d", state["step"])
        if note:
            self._note(note)
        return int(state["step"])

    # --- the end ----------------------------------------------------------------------------------

    def _finish(self, ending: RunEnd) -> dict[str, Any]:
        # Taken first: what follows is not training.
        numbers = {
            "train_s": self._telemetry.elapsed_s,
            **self._telemetry.summary(),
            **self._engine.steering.health.summary(),
            "selection.passed_over": self._engine.stream.num_passed_over,
        }
        if doubt := self._telemetry.doubt:
            self._note(doubt)
        stream = self._engine.stream
        step = stream.steps_done
        if step == 0 and ending is RunEnd.FINISHED:
            reason = "the candidates kept did not fill one batch"
            raise ConfigError("train.epochs", self._setup.config.train.epochs, reason, "Train longer")
        if step:
            # Also when stopped. Before the test error is measured, so that a kill meanwhile loses nothing.
            self._leave_checkpoint(step, ending)
        if ending is RunEnd.FINISHED:
            if self._loop.run_evaluation(step, stream.ledger.num_considered):
                numbers |= self._telemetry.evaluation_numbers()
            else:
                ending = RunEnd.STOPPED  # a resume measures it
        if self._results.are_lost and ending is RunEnd.FINISHED:
            ending = RunEnd.FAILED  # a resume trains again what was lost
        self._engine.stop(ending)
        self._doing("writing the summary")
        numbers["checkpoint.spare"] = self._results.spare and str(self._results.spare)
        summary = self._accounts.summary(ending, numbers)
        self._telemetry.progress(1.0 if ending is RunEnd.FINISHED else None, now=True)
        self._results.leave_summary(summary)
        self._events.write("summary", **summary)
        leave_examples(self._engine.census, self._run_dir.path, self._setup)
        return summary

    def _leave_checkpoint(self, step: int, ending: RunEnd) -> None:
        self._checkpoints.wait()
        try:
            state, beside = self._state(step, is_last=ending is RunEnd.FINISHED)
        except TimeoutError as error:
            self._results.leave_weights(step, self._setup.train_step.state(), str(error))
            return
        if beside is None:
            self._results.leave_checkpoint(step, state)
        elif self._checkpoints.save_now(step, state, beside):
            # As one file, which may lie on this host alone: other ranks need not see it.
            self._warn(f"the ranks' shares of step {step} were not written ({self._checkpoints.last_error})")
            self._results.leave_checkpoint(step, {**state, **self._setup.train_step.state()})
        if not self._checkpoints.last_error:
            log.info("%s at step %d; a checkpoint is in %s", ending, step, self._checkpoints.folder)


@contextlib.contextmanager
def _stop_on_signal(is_stopped: threading.Event) -> Iterator[None]:
    """SIGINT and SIGTERM end the loop at the next step boundary; after that, SIGINT ends it at once.

    A second SIGTERM does nothing: job schedulers send one to every process, and so does our supervisor.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, _frame: object) -> None:
        if is_stopped.is_set():
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            return
        log.info("%s: stopping at the next step boundary", signal.Signals(number).name)
        is_stopped.set()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
