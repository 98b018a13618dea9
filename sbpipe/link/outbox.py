"""Messages from any thread to the one thread that owns the sockets, and the bell that wakes it.

It must not know what the messages are, nor what polls the bell.
"""

import contextlib
import socket
import threading
from collections import deque
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Bell:
    """Wakes a thread that polls. Several rings before it polls wake it once; a ring is never lost."""

    def __init__(self) -> None:
        # Not a zmq socket: those belong to one thread, and any thread may ring.
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        # Without the lock, a ring during close could write to a descriptor that has been reused.
        self._lock = threading.Lock()

    def fileno(self) -> int:
        """What the owning thread polls."""
        return self._reader.fileno()

    def ring(self) -> None:
        """From any thread; does nothing after close."""
        with self._lock:
            if self._writer.fileno() >= 0:
                # A full pipe means that it is ringing already.
                with contextlib.suppress(BlockingIOError):
                    self._writer.send(b"!")

    def clear(self) -> None:
        """Called by the owning thread before it checks what it was woken for."""
        with contextlib.suppress(BlockingIOError):
            while len(self._reader.recv(4096)) == 4096:
                pass

    def close(self) -> None:
        """Close it; may be called twice."""
        with self._lock:
            self._writer.close()
            self._reader.close()


class Outbox(Generic[Item]):
    """A bounded queue that rings the bell."""

    def __init__(self, bell: Bell, limit: int) -> None:
        self._bell = bell
        self._limit = limit
        self._lock = threading.Lock()
        self._items: deque[Item] = deque()
        self._is_closed = False

    def put(self, item: Item) -> bool:
        """From any thread; False if it is full or closed."""
        with self._lock:
            if self._is_closed or len(self._items) >= self._limit:
                return False
            self._items.append(item)
        self._bell.ring()
        return True

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits; an item that is put a moment later rings the bell."""
        return not self._items

    def take(self) -> list[Item]:
        """Remove and return all items, in order."""
        with self._lock:
            items = list(self._items)
            self._items.clear()
        return items

    def close(self) -> None:
        """Accept no more items."""
        with self._lock:
            self._is_closed = True
            self._items.clear()
