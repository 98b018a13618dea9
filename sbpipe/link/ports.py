"""What the loops may ask of their channel, be it sockets, one process, or a test that loses messages.

A port belongs to one thread, which sends and receives; `post` and `wake` may be called from any. That a
message was sent means that it was handed over, not that it arrived: it can still be lost with the connection,
and only an answer proves the contrary.
"""

from collections import Counter
from typing import Protocol

from sbpipe.link.messages import Message


class Port(Protocol):
    """The trainer's end: many peers, each by its selector_id. One that is gone is told by Departed."""

    @property
    def session(self) -> bytes:
        """This trainer's session: every message carries it."""

    @property
    def dropped(self) -> Counter[str]:
        """Messages not delivered, in either direction, by reason."""

    def send(self, peer: str, message: Message) -> bool:
        """Send now, never block; False if the peer is gone or its queue is full (counted)."""

    def post(self, peer: str, message: Message) -> bool:
        """From any thread: send at the next or the present `receive`; False if closed or too much waits."""

    def receive(self, timeout_s: float) -> list[tuple[str, Message]]:
        """What came, in order per peer, control before bulk; [] when the time is up or the port was woken."""

    def wake(self) -> None:
        """From any thread: let the present or next `receive` return."""

    def refuse(self, peer: str) -> None:
        """Drop everything of this peer from now on, unread."""

    def release(self, peer: str) -> None:
        """Forget this peer: it must say hello again, and another connection may take its name."""

    def close(self) -> None:
        """Let go of everything; may be called twice."""


class OnePeerPort(Protocol):
    """The selector's end: the one peer is the trainer."""

    @property
    def refusal(self) -> str:
        """Why there is no use in trying on: the trainer does not take this key, or has another; else ""."""

    @property
    def session(self) -> bytes:
        """The trainer's session, learned from Welcome; NO_SESSION before it and after Fenced."""

    @session.setter
    def session(self, session: bytes) -> None: ...

    @property
    def dropped(self) -> Counter[str]:
        """Messages not delivered, in either direction, by reason."""

    def send(self, message: Message) -> bool:
        """Send now, never block; False (and counted) if the queue is full, or no session and no Hello."""

    def post(self, message: Message) -> bool:
        """From any thread: send at the next or the present `receive`."""

    def receive(self, timeout_s: float) -> list[Message]:
        """What came, in order, control before bulk; [] when the time is up or the port was woken."""

    def wake(self) -> None:
        """From any thread: let the present or next `receive` return."""

    def close(self) -> None:
        """Let go of everything; may be called twice."""
