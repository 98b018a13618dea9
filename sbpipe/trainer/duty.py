"""What a thread does while other ranks wait for it, and its deadline. It must not know these ranks.

A duty has a known duration: a step, the loading of a batch. An evaluation, a checkpoint or a wait for
selectors may take any time, and is not a duty.
"""

import contextlib
import math
import time
from collections.abc import Callable, Iterator


class Duty:
    """At most one thing at a time; written by one thread, read by another."""

    def __init__(self, wait_s: float = math.inf, now: Callable[[], float] = time.monotonic) -> None:
        """`wait_s` is how long the others wait; endless for a trainer that is the only rank."""
        self._wait_s, self._now = wait_s, now
        self._open: tuple[str, float, float] | None = None

    def begin(self, what: str, times: float = 1.0) -> None:
        """Begin something that must end within `times` the usual wait; it replaces what went on before.

        `what` follows "has been" in a message.
        """
        self._open = (what, self._now(), times * self._wait_s)

    def end(self) -> None:
        """The duty is done: from now on no deadline holds."""
        self._open = None

    @contextlib.contextmanager
    def during(self, what: str) -> Iterator[None]:
        """A duty for the length of a `with` block."""
        self.begin(what)
        try:
            yield
        finally:
            self.end()

    @property
    def overdue(self) -> str:
        """What should be over by now; "" = nothing."""
        # Read once: the other thread may replace it meanwhile.
        found = self._open
        if found is None or self._now() - found[1] <= found[2]:
            return ""
        return f"{found[0]} for longer than {found[2]:g} s"
