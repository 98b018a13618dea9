"""Letters that any thread may leave for the one thread that owns the sockets, and the bell that calls it.

It must not know what the letters are, nor what polls the bell.
"""

import contextlib
import socket
import threading
from collections import deque
from typing import Generic, TypeVar

Letter = TypeVar("Letter")


class Bell:
    """Rung once or a thousand times before it is heard: it is heard once. A ring is never lost."""

    def __init__(self) -> None:
        self._ear, self._rope = socket.socketpair()
        self._ear.setblocking(False)
        self._rope.setblocking(False)
        # Without the lock, a ring during close could write into a descriptor that was given to someone else
        # meanwhile.
        self._lock = threading.Lock()

    def fileno(self) -> int:
        """What the hearing thread polls."""
        return self._ear.fileno()

    def ring(self) -> None:
        """From any thread; does nothing after close."""
        with self._lock:
            if self._rope.fileno() >= 0:
                # A full pipe means that it rings already.
                with contextlib.suppress(BlockingIOError):
                    self._rope.send(b"!")

    def hush(self) -> None:
        """By the hearing thread, before it looks for what it was called for."""
        with contextlib.suppress(BlockingIOError):
            while len(self._ear.recv(4096)) == 4096:
                pass

    def close(self) -> None:
        """Take it down; may be called twice."""
        with self._lock:
            self._rope.close()
            self._ear.close()


class Outbox(Generic[Letter]):
    """A bounded queue that rings the bell."""

    def __init__(self, bell: Bell, limit: int) -> None:
        self._bell = bell
        self._limit = limit
        self._lock = threading.Lock()
        self._letters: deque[Letter] = deque()
        self._is_closed = False

    def put(self, letter: Letter) -> bool:
        """From any thread; False if it is full or closed."""
        with self._lock:
            if self._is_closed or len(self._letters) >= self._limit:
                return False
            self._letters.append(letter)
        self._bell.ring()
        return True

    def take(self) -> list[Letter]:
        """Everything that waits, in order."""
        with self._lock:
            letters = list(self._letters)
            self._letters.clear()
        return letters

    def close(self) -> None:
        """Take nothing more."""
        with self._lock:
            self._is_closed = True
            self._letters.clear()
