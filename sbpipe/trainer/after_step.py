"""Work that a step leaves behind and the next step need not wait for: steering, writing events.

Without a thread the work is done at once, in the loop. With one it is done beside the next step, in order,
from `go` on: a backward pass leaves the interpreter to other threads; before, they hold up the loop.
An error in it is raised in the loop by the next `settle`. This file must not know what the work is.
"""

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future

from sbpipe.runs.spans import Spans

log = logging.getLogger("sbpipe.trainer")


class AfterStep:
    """Takes work from the loop. Readers of what that work writes call `settle` first."""

    def __init__(self, spans: Spans) -> None:
        self._spans = spans
        self._thread: threading.Thread | None = None
        self._held: list[tuple[Callable[[], None], Future[None]]] = []
        self._given: queue.SimpleQueue[tuple[Callable[[], None], Future[None]] | None] = queue.SimpleQueue()
        self._under_way: deque[Future[None]] = deque()

    def start(self) -> None:
        """Use a thread from now on; it runs on the caller's cores."""
        # Not an executor: it takes no more work while a program ends, which is when a user's loop may close.
        self._thread = threading.Thread(target=self._run, name="after step", daemon=True)
        self._thread.start()

    @property
    def has_thread(self) -> bool:
        """Whether work is done beside the loop."""
        return self._thread is not None

    def do(self, work: Callable[[], None]) -> None:
        """Do the work, at once or, from `go` on, beside the next step."""
        if self._thread is None:
            work()
            return
        done: Future[None] = Future()
        self._under_way.append(done)
        self._held.append((work, done))

    def go(self) -> None:
        """The loop is about to compute for a while without the interpreter."""
        held, self._held = self._held, []
        for given in held:
            self._given.put(given)

    def _run(self) -> None:
        while (given := self._given.get()) is not None:
            work, done = given
            try:
                with self._spans.cpu_span("after"):
                    work()
            except BaseException as error:  # noqa: BLE001 - the top of a thread: `settle` raises it again
                done.set_exception(error)
            else:
                done.set_result(None)

    def settle(self) -> None:
        """Wait until all work is done; raises the first error in it."""
        if not self._under_way:
            return
        self.go()
        with self._spans.span("settle"):
            while self._under_way:
                self._under_way.popleft().result()

    def stop(self) -> None:
        """Finish the work given so far and end the thread; later work is done at once.

        An error that nobody settled for is logged: the run has ended by another one.
        """
        thread, self._thread = self._thread, None
        self.go()
        if thread is not None:
            self._given.put(None)
            thread.join()
        while self._under_way:
            if error := self._under_way.popleft().exception():
                log.error("after a step: %s", error, exc_info=error)
