"""Runs a run's processes to the end: starts, watches and stops them, shows their events. Knows no torch.

Each child leads its own session, so a Ctrl-C reaches only the supervisor, which then stops them in order: the
trainer writes a checkpoint and says goodbye, which ends the selectors. If the supervisor itself is killed,
the kernel stops the children.
"""

import shutil
import signal
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

from sbpipe.config import Config
from sbpipe.process.child import ChildFailed
from sbpipe.process.crew import Crew
from sbpipe.process.patience import Patience
from sbpipe.process.selector_care import SelectorCare
from sbpipe.process.showing import SelectorEvents, show_events
from sbpipe.process.standing import Standing
from sbpipe.process.trainer_care import TrainerCare
from sbpipe.runs.directory import CONFIG
from sbpipe.runs.follower import TrainerFollower
from sbpipe.show.terminal import Display
from sbpipe.weights.leftovers import sweep

_POLL_S = 0.2
_SELECTOR_GRACE_S, _TRACKER_GRACE_S = 5.0, 30.0
"""How long selectors and trackers may take to end after the trainer; a tracker may still be uploading."""
_SAY_EVERY_S = 10.0
_STOPPED = 130
_LEAST_BYTES = 1 << 16
"""A disk with less room than this is full."""
_STOPPING = "stopping: the trainer finishes its step and leaves a checkpoint (Ctrl-C again to kill)"


class Ending(NamedTuple):
    """How a supervised run ended: whether it finished (False: stopped by a signal), and its numbers."""

    is_finished: bool
    summary: dict[str, Any]
    """The trainer's summary; {} if it was killed."""


class Supervisor:
    """Runs the crew of one run."""

    def __init__(
        self, config: Config, crew: Crew, path: Path, standing: Standing, max_restarts: int, display: Display
    ) -> None:
        self._crew, self._path, self._display = crew, path, display
        self._follower, self._selector_events = TrainerFollower(path), SelectorEvents(path)
        self._trainer_care = TrainerCare(crew, standing, max_restarts, display)
        self._selector_care = SelectorCare(
            config, crew.selectors, standing, self._selector_events.num_answered, display
        )
        self._patience = Patience()
        self._directory_fault = ""

    def run(self) -> Ending:
        """Run to the end; raises `ChildFailed` if it ends badly."""
        try:
            return self._ending(is_stopped=self._supervise())
        finally:
            self._crew.close()

    def _supervise(self) -> bool:
        """Run until all processes have ended; returns whether a signal stopped the run."""
        # Skip events of an earlier run here, or of the part before a resume.
        self._follower.pass_over()
        self._selector_events.pass_over()
        with _StopRequest() as is_stopping:
            try:
                self._crew.start()
                while not self._trainer_care.is_over:
                    self._show()
                    if is_stopping.count:
                        # A trainer that has not opened its run ends at once.
                        if (self._path / CONFIG).exists():
                            self._display.say(_STOPPING)
                        self._end_trainer()
                        break
                    self._look_after(time.monotonic())
                    self._watch_directory()
                    time.sleep(_POLL_S)
                # Once more: the last events may have been written after the last look.
                self._show()
            except KeyboardInterrupt:
                self._crew.trainer.stop(signal.SIGKILL)
            finally:
                self._end()
                # A trainer that was killed could not remove its slots.
                sweep()
        return bool(is_stopping.count)

    def _ending(self, *, is_stopped: bool) -> Ending:
        trainer = self._crew.trainer
        is_finished = self._trainer_care.is_over
        code = trainer.code or 0
        # A stopped trainer says so by its code; one that did not stop in time was killed.
        if not is_finished and not (is_stopped and (code == _STOPPED or code < 0)):
            raise ChildFailed(trainer)
        return Ending(is_finished, trainer.last_word.get("summary", {}))

    def _show(self) -> None:
        for event in show_events(self._follower, self._display, with_warnings=True):
            if event.get("kind") == "selector" and event.get("state") == "ready":
                self._selector_care.was_ready = True
        self._selector_events.show(self._display)

    def _look_after(self, now: float) -> None:
        trainer = self._crew.trainer
        if self._trainer_care.look(now):
            self._patience = Patience()
        if trainer.code is not None:
            return
        self._watch(now)
        self._selector_care.look(now)
        for tracker in self._crew.trackers:
            if tracker.code not in (None, 0) and not tracker.is_given_up:
                tracker.is_given_up = True
                self._display.say(
                    f"the {tracker.role} ended with code {tracker.code}; the run goes on without it "
                    f"(its log: {tracker.log})"
                )

    # --- the end ----------------------------------------------------------------------------------

    def _watch(self, now: float) -> str:
        """Look for signs of life of the trainer; returns what it does."""
        bulletin = self._crew.trainer.bulletin
        assert bulletin is not None, "it was started"
        count, what = bulletin.news
        self._patience.see(count, now)
        return what

    def _watch_directory(self) -> None:
        """Warn if the run directory is gone or full: the trainer's messages go through it."""
        fault = _fault_of(self._path)
        if fault and not self._directory_fault:
            self._display.say(
                f"warning: {self._path} {fault}; training goes on, and what cannot be left there at its end "
                "goes to the spare folder"
            )
        self._directory_fault = fault

    def _end_trainer(self) -> None:
        """Ask the trainer to end, and wait as long as it shows signs of life."""
        trainer, now = self._crew.trainer, time.monotonic()
        if trainer.process is None:
            return
        trainer.stop()
        self._patience.begin(now)
        say_at = now + _SAY_EVERY_S
        while trainer.code is None:
            now = time.monotonic()
            what = self._watch(now)
            if self._patience.is_over(now):
                silent_s = self._patience.allowed_s
                self._display.say(f"killing the trainer: silent for {silent_s:.0f} s (last seen {what})")
                trainer.stop(signal.SIGKILL)
                trainer.wait(_SELECTOR_GRACE_S)
            elif now >= say_at:
                say_at = now + _SAY_EVERY_S
                self._display.say(f"stopping: the trainer is {what} (Ctrl-C again to kill)")
            time.sleep(_POLL_S / 4)

    def _end(self) -> None:
        """Stop what still runs: first the trainer, whose goodbye ends the selectors; then the others."""
        self._end_trainer()
        others = self._crew.selectors
        # Trackers see by themselves that the run is over, and how.
        if self._crew.trainer.code != 0:
            for other in others:
                other.stop()
        for other in others:
            other.wait(_SELECTOR_GRACE_S)
        for tracker in self._crew.trackers:
            tracker.wait(_TRACKER_GRACE_S)


def _fault_of(folder: Path) -> str:
    """Why files cannot be written to a folder, as far as it shows from outside; "" = nothing is wrong."""
    try:
        return "has no room left" if shutil.disk_usage(folder).free < _LEAST_BYTES else ""
    except OSError:
        return "is gone"


class _StopRequest:
    """Counts SIGINT and SIGTERM; a Ctrl-C after either raises.

    A second SIGTERM does not raise: job schedulers send several, and later kill by another signal.
    """

    def __init__(self) -> None:
        self.count = 0
        self._before: dict[int, object] = {}

    def __enter__(self) -> "_StopRequest":
        # Python allows handlers in the main thread only; a run started from another thread has none.
        if threading.current_thread() is threading.main_thread():
            self._before = {
                number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)
            }
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _on_signal(self, number: int, _frame: object) -> None:
        self.count += 1
        if self.count > 1 and number == signal.SIGINT:
            raise KeyboardInterrupt
