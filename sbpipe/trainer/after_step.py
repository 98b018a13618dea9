"""What a step leaves to be done and the next one need not wait for: losses looked at, numbers written.

Without a thread it is done at once, in the loop. With one it is done beside the next step, in order, and what
fails in it is raised in the loop by the next `settle`. It must not know what is done.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from sbpipe.runs.spans import Spans


class AfterStep:
    """Takes work from the loop. Whoever reads what that work writes calls `settle` first."""

    def __init__(self, spans: Spans) -> None:
        self._spans = spans
        self._thread: ThreadPoolExecutor | None = None
        self._under_way: deque[Future[None]] = deque()

    def start(self) -> None:
        """Have a thread from now on, on the cores of whoever starts it."""
        self._thread = ThreadPoolExecutor(1, "after step")
        # An executor starts its thread with the first piece of work, and a thread inherits its cores then.
        self._thread.submit(int).result()

    def do(self, work: Callable[[], None]) -> None:
        """Do it, at once or beside the next step."""
        if self._thread is None:
            work()
        else:
            self._under_way.append(self._thread.submit(self._timed, work))

    def _timed(self, work: Callable[[], None]) -> None:
        with self._spans.cpu_span("after"):
            work()

    def settle(self) -> None:
        """Wait until all of it is done; raises what failed in it."""
        while self._under_way:
            self._under_way.popleft().result()

    def stop(self) -> None:
        """End the thread when it has done what it was given; from then on work is done at once."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.shutdown()
