"""What a thread does that others wait for, and until when. It must not know who they are.

Only what has an end is a duty: a step, the loading of a batch. An evaluation, a checkpoint or a wait for
selectors may take as long as it likes, and is none.
"""

import contextlib
import math
import time
from collections.abc import Callable, Iterator


class Duty:
    """At most one thing at a time; written by one thread, read by another."""

    def __init__(self, wait_s: float = math.inf, now: Callable[[], float] = time.monotonic) -> None:
        """`wait_s` is how long the others wait; nobody waits for a trainer that is alone."""
        self._wait_s, self._now = wait_s, now
        self._open: tuple[str, float, float] | None = None

    def begin(self, what: str, times: float = 1.0) -> None:
        """Something begins that is over after `times` the usual wait; what went on before it has ended.

        `what` follows "has been".
        """
        self._open = (what, self._now(), times * self._wait_s)

    def end(self) -> None:
        """Nobody waits any more, or for as long as it takes."""
        self._open = None

    @contextlib.contextmanager
    def during(self, what: str) -> Iterator[None]:
        """Something that begins and ends here."""
        self.begin(what)
        try:
            yield
        finally:
            self.end()

    @property
    def overdue(self) -> str:
        """What should be over by now; "" = nothing."""
        # Read once: the other thread goes on meanwhile.
        found = self._open
        if found is None or self._now() - found[1] <= found[2]:
            return ""
        return f"{found[0]} for longer than {found[2]:g} s"
