"""The queue from the selector's link thread to its main loop; bounded, since a trainer may be hostile.

It must not know ports, nor what is done with a message.
"""

import contextlib
import queue
import threading
from typing import NamedTuple

from sbpipe.errors import PeerRejected, SbpipeError
from sbpipe.link.limits import MAX_HELD_BYTES, MAX_HELD_LEASES
from sbpipe.link.messages import Goodbye, Welcome
from sbpipe.records import Lease

Held = Welcome | Lease | Goodbye | SbpipeError
"""Errors of the link thread are passed on too, to be raised in the main loop."""


class _Entry(NamedTuple):
    message: Held
    num_bytes: int


class Inbox:
    """Messages in order of arrival; one thread puts, another gets."""

    def __init__(self) -> None:
        self._queue: queue.Queue[_Entry] = queue.Queue()
        self._lock = threading.Lock()
        self._num_bytes = 0

    def put(self, message: Held) -> None:
        """Add a message; PeerRejected if more leases wait than an honest trainer ever grants."""
        entry = _Entry(message, _bytes_of(message))
        if not isinstance(message, SbpipeError):
            self._refuse_too_much(entry.num_bytes)
        with self._lock:
            self._num_bytes += entry.num_bytes
        self._queue.put(entry)

    def get(self, timeout_s: float) -> Held | None:
        """The next message; None if there is none in time."""
        try:
            return self._taken(self._queue.get(timeout=timeout_s))
        except queue.Empty:
            return None

    def drop_leases(self) -> None:
        """Drop leases of an earlier session: the trainer takes no answers to them."""
        kept: list[Held] = []
        with contextlib.suppress(queue.Empty):  # the main loop takes from it too
            while True:
                message = self._taken(self._queue.get_nowait())
                kept += [message] if isinstance(message, Goodbye | SbpipeError) else []
        for message in kept:
            self.put(message)

    def _refuse_too_much(self, num_bytes: int) -> None:
        count = self._queue.qsize()
        total = self._num_bytes + num_bytes
        if count >= MAX_HELD_LEASES or total > MAX_HELD_BYTES:
            raise PeerRejected(
                f"the trainer sends more than anyone could answer: {count} messages of {total} bytes wait "
                f"(at most {MAX_HELD_LEASES} of {MAX_HELD_BYTES})"
            )

    def _taken(self, entry: _Entry) -> Held:
        with self._lock:
            self._num_bytes -= entry.num_bytes
        return entry.message


def _bytes_of(message: Held) -> int:
    if not isinstance(message, Lease):
        return 0
    arrays = (message.history, message.history_classes, message.doubted)
    return sum(array.nbytes for array in arrays if array is not None)
