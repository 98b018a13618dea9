"""The interface of a channel: sockets, one process, or a test that loses messages.

A port belongs to one thread, which sends and receives; `post` and `wake` may be called from any thread. A
message that was sent was handed over, but may still be lost with the connection: only an answer proves that
it arrived.
"""

from collections import Counter
from typing import Protocol

from sbpipe.link.messages import Message


class Port(Protocol):
    """The trainer's end: many peers, each by its selector_id. A peer that is gone is reported by Departed."""

    @property
    def session(self) -> bytes:
        """This trainer's session: every message carries it."""

    @property
    def dropped(self) -> Counter[str]:
        """Messages not delivered, in either direction, by reason."""

    def send(self, peer: str, message: Message) -> bool:
        """Send now, never block; False if the peer is gone or its queue is full (counted)."""

    def post(self, peer: str, message: Message) -> bool:
        """From any thread: send at the present or next `receive`; False if closed or if too many messages
        wait.
        """

    def receive(self, timeout_s: float) -> list[tuple[str, Message]]:
        """The messages that arrived, in order per peer, control before bulk; [] on timeout or wake."""

    def wake(self) -> None:
        """From any thread: let the present or next `receive` return."""

    def refuse(self, peer: str) -> None:
        """Drop everything of this peer from now on, unread."""

    def release(self, peer: str) -> None:
        """Forget this peer: it must say hello again, and another connection may take its name."""

    def close(self) -> None:
        """Release everything; may be called twice."""


class OnePeerPort(Protocol):
    """The selector's end: the one peer is the trainer."""

    @property
    def refusal(self) -> str:
        """Why retrying is useless: the trainer refuses this key, or has another; else ""."""

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
        """From any thread: send at the present or next `receive`."""

    def receive(self, timeout_s: float) -> list[Message]:
        """The messages that arrived, in order, control before bulk; [] on timeout or wake."""

    def wake(self) -> None:
        """From any thread: let the present or next `receive` return."""

    def close(self) -> None:
        """Release everything; may be called twice."""
