"""The in-process port: a function answers instead of a peer. No socket, no thread.

`mode = inline` and tests of the trainer's loop run on it. It must not know what the handler does.
"""

import secrets
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable

from sbpipe.link.messages import Message


class InlinePort:
    """`send` queues; `receive` hands one queued message to the handler and returns its replies.

    `greeting` are the messages that the peer sends first (its Hello). Messages are not packed.
    """

    def __init__(
        self, handler: Callable[[Message], Iterable[Message]], peer: str, greeting: Iterable[Message] = ()
    ) -> None:
        self.session = secrets.token_bytes(16)
        self.dropped: Counter[str] = Counter()
        self._handler = handler
        self._peer = peer
        self._greeting = list(greeting)
        self._queue: deque[Message] = deque()
        self._news = threading.Event()
        self._is_refused = False
        self._is_closed = False

    def send(self, peer: str, message: Message) -> bool:
        """Queue it for the handler."""
        if peer != self._peer or self._is_closed:
            self.dropped["unreachable"] += 1
            return False
        self._queue.append(message)
        self._news.set()
        return True

    def post(self, peer: str, message: Message) -> bool:
        """The same as `send`: appending to the queue is safe from any thread."""
        return self.send(peer, message)

    def receive(self, timeout_s: float) -> list[tuple[str, Message]]:
        """The greeting, then the replies to one queued message; waits for one like a socket does."""
        if not self._greeting and not self._queue:
            self._news.wait(timeout_s)
        self._news.clear()
        if self._greeting:
            replies, self._greeting = self._greeting, []
        else:
            replies = list(self._handler(self._queue.popleft())) if self._queue else []
        if self._is_refused:
            self.dropped["refused"] += len(replies)
            return []
        return [(self._peer, reply) for reply in replies]

    def wake(self) -> None:
        """Let the present or next `receive` return."""
        self._news.set()

    def refuse(self, peer: str) -> None:
        """Drop the replies from now on."""
        self._is_refused = self._is_refused or peer == self._peer

    def release(self, peer: str) -> None:
        """The one peer keeps its name."""

    def close(self) -> None:
        """Drop what is queued."""
        self._is_closed = True
        self._greeting.clear()
        self._queue.clear()
