"""When the dispatcher's thread does not listen, and how others call it. Knows neither leases nor messages.

A turn of that thread costs the loop's core the more the less there is to do in it: after a train step none of
its code is in the caches. So what comes while nothing depends on it is left where it is, and handled together
with what the beginning of the next step brings.
"""

import threading

from sbpipe.link.ports import Port

LONGEST_S = 0.25
"""How long somebody new may have to wait to be heard."""


class Rest:
    """Called under its owner's lock, which a rest gives away as long as it lasts."""

    def __init__(self, lock: threading.RLock, port: Port) -> None:
        self._condition = threading.Condition(lock)
        self._port = port
        self._is_called = self._is_resting = False
        self._taken_in = -1
        self.is_over = False
        """Whether a rest has just ended: what came meanwhile is there already."""
        self.was_taken = False
        """Whether what is being handled now may have come a while ago."""

    def call(self) -> None:
        """By any thread: let the dispatcher's take its next turn now."""
        self._is_called = True
        if self._is_resting:
            self._condition.notify()
        else:
            self._port.wake()

    def begin_turn(self) -> None:
        """By the dispatcher's thread: whoever has called until now is heard in this turn."""
        self._is_called, self.was_taken, self.is_over = False, self.is_over, False

    def take(self, step: int) -> None:
        """By the dispatcher's thread: rest until somebody calls, once in a step, unless one has called."""
        if self._is_called or step == self._taken_in:
            return
        self._taken_in = step
        self._is_resting = self.is_over = True
        self._condition.wait(LONGEST_S)
        self._is_resting = False
