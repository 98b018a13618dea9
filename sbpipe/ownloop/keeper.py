"""Keeps the selectors of a user's own loop running: starts and restarts them, and ends them with the loop.

It works in one thread of its own: the kernel ends a child with the thread that started it, and the user's
threads come and go. It must not know what the selectors select.
"""

import logging
import threading
import time
from pathlib import Path

from sbpipe.config import Config
from sbpipe.process import assignments, selector_settings, trackers_of
from sbpipe.process.child import Child, role_command
from sbpipe.process.selector_care import SelectorCare
from sbpipe.process.showing import SelectorEvents
from sbpipe.process.standing import Standing
from sbpipe.runs.names.files import JOB, LOGS

log = logging.getLogger("sbpipe")

_POLL_S = 0.2
_GRACE_S, _TRACKER_GRACE_S = 5.0, 30.0
_STOPPING_S = 2 * _GRACE_S


class _Notes:
    """Writes the selectors' messages to the log of the user's program; most of them are no warnings."""

    def say(self, text: str) -> None:
        is_warning = text.startswith("warning: ")
        log.log(logging.WARNING if is_warning else logging.INFO, "%s", text.removeprefix("warning: "))


class Keeper:
    """The children of one run, in a thread of their own."""

    def __init__(self, config: Config, path: Path, count: int, is_over: threading.Event) -> None:
        """`is_over` is set when no selector is left and the run needs one; `failure` then says why."""
        own = assignments(selector_settings(config))
        self._selectors = [
            Child(
                f"selector {k}",
                role_command("selector", *own, "--connect", str(path), "--job", str(path / JOB)),
                path / LOGS / f"selector-{k}.log",
            )
            for k in range(count)
        ]
        self._trackers = trackers_of(config, path)
        self._events = SelectorEvents(path)
        self._care = SelectorCare(
            config, self._selectors, Standing(path, resume=True), self._events.num_answered, self
        )
        self._is_over, self._is_ending = is_over, threading.Event()
        self._are_selectors_gone, self._is_run_closed = threading.Event(), threading.Event()
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="keeper", daemon=True)

    def start(self) -> None:
        """Start the children."""
        if self._selectors or self._trackers:
            self._thread.start()

    def was_ready(self) -> None:
        """A selector has served this run."""
        self._care.was_ready = True

    def stop_selectors(self) -> None:
        """Wait until the selectors have ended; the thread kills those that do not end by themselves."""
        self._is_ending.set()
        if self._thread.is_alive():
            self._are_selectors_gone.wait(_STOPPING_S)

    def wait_for_trackers(self) -> None:
        """Wait until the trackers have copied the end of the run: its last event, and its lock released."""
        self._is_ending.set()
        self._is_run_closed.set()
        if self._thread.is_alive():
            self._thread.join(_STOPPING_S + _TRACKER_GRACE_S)

    def say(self, text: str) -> None:
        """Report a death in the log of the user's program."""
        log.warning("%s", text)

    def _run(self) -> None:
        try:
            for child in (*self._selectors, *self._trackers):
                child.start()
            while not self._is_ending.wait(_POLL_S):
                self._events.show(_Notes())
                self._care.look(time.monotonic())
        except BaseException as error:  # noqa: BLE001 - the top of a thread: the loop raises it again
            self.failure = error
            self._is_over.set()
        finally:
            for child in self._selectors:
                # The engine has said goodbye; a selector that missed it is killed after a while.
                child.wait(_GRACE_S)
            self._are_selectors_gone.set()
            if self._trackers:
                # Their time begins once they can see the end. The kernel ends them with this thread.
                self._is_run_closed.wait()
            for tracker in self._trackers:
                tracker.wait(_TRACKER_GRACE_S)
            for child in (*self._selectors, *self._trackers):
                child.close()
