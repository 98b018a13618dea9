"""Work that a step leaves behind and the next step need not wait for: steering, writing events.

Without a thread the work is done at once, in the loop. With one it is done beside the next step, in order; an
error in it is raised in the loop by the next `settle`. This file must not know what the work is.
"""

import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from sbpipe.runs.spans import Spans

log = logging.getLogger("sbpipe.trainer")


class AfterStep:
    """Takes work from the loop. Readers of what that work writes call `settle` first."""

    def __init__(self, spans: Spans) -> None:
        self._spans = spans
        self._thread: ThreadPoolExecutor | None = None
        self._under_way: deque[Future[None]] = deque()

    def start(self) -> None:
        """Use a thread from now on; it runs on the caller's cores."""
        self._thread = ThreadPoolExecutor(1, "after step")
        # An executor starts its thread with the first piece of work; the thread inherits its cores at that
        # moment.
        self._thread.submit(int).result()

    @property
    def has_thread(self) -> bool:
        """Whether work is done beside the loop."""
        return self._thread is not None

    def do(self, work: Callable[[], None]) -> None:
        """Do the work, at once or beside the next step."""
        if self._thread is None:
            work()
        else:
            self._under_way.append(self._thread.submit(self._timed, work))

    def _timed(self, work: Callable[[], None]) -> None:
        with self._spans.cpu_span("after"):
            work()

    def settle(self) -> None:
        """Wait until all work is done; raises the first error in it."""
        if not self._under_way:
            return
        with self._spans.span("settle"):
            while self._under_way:
                self._under_way.popleft().result()

    def stop(self) -> None:
        """Finish the work given so far and end the thread; later work is done at once.

        An error that nobody settled for is logged: the run has ended by another one.
        """
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.shutdown()
        while self._under_way:
            if error := self._under_way.popleft().exception():
                log.error("after a step: %s", error, exc_info=error)
