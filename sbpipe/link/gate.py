"""Who gets in: of each list of frames, what is handed on, what is answered, and what is counted.

The trainer's gate distrusts (strikes, refusal, fencing of other sessions), the selector's learns the session
from Welcome. Pure bookkeeping over frames, so every rule is testable without a socket; it must not know zmq.

Reasons that are counted: prefix, protocol, type, header, fields, arrays, meaning (what `frames` finds);
misplaced (a message of the other pair or direction, or a Hello in another's name); nameless (a routing id
that is no selector_id); refused; fenced; duplicate; foreign (at the selector: of another session).
"""

from collections import Counter, OrderedDict
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from sbpipe.link.frames import Buffer, Envelope, ProtocolMismatch, decode
from sbpipe.link.limits import MAX_PEERS, MAX_STRIKES
from sbpipe.link.messages import (
    BULK,
    NO_SESSION,
    TO_SELECTOR,
    TO_TRAINER,
    Fenced,
    Hello,
    Message,
    Reject,
    Welcome,
)
from sbpipe.link.schema import NAME, BadFrame

Key = TypeVar("Key")


class Verdict(NamedTuple):
    """What to hand on and what to answer."""

    message: Message | None = None
    answer: Message | None = None


class TrainerGate:
    """Judges what selectors send."""

    def __init__(self, session: bytes, dropped: Counter[str]) -> None:
        self._session = session
        self._dropped = dropped
        self._strikes: OrderedDict[str, int] = OrderedDict()
        self._last: OrderedDict[tuple[str, bool], int] = OrderedDict()

    def refuse(self, peer: str) -> None:
        """Drop everything of this peer from now on, unread."""
        _remember(self._strikes, peer, MAX_STRIKES)

    def is_refused(self, peer: str) -> bool:
        """Whether this peer is refused."""
        return self._strikes.get(peer, 0) >= MAX_STRIKES

    def judge(self, peer: str, frames: Sequence[Buffer], *, is_bulk: bool) -> Verdict:
        """What becomes of one list of frames."""
        if not NAME.fullmatch(peer):
            return self._drop("nameless")
        if self.is_refused(peer):
            return self._drop("refused")
        try:
            session, sequence, message = _opened(frames, TO_TRAINER, is_bulk)
            if isinstance(message, Hello) and message.selector_id != peer:
                raise BadFrame("misplaced", f"{peer} says hello as {message.selector_id}")
        except BadFrame as error:
            return self._strike(peer, error)
        if isinstance(message, Hello):
            # A selector that starts again under its old name counts from the beginning, so a Hello forgets
            # what was before it: bulk here, control below.
            self._last.pop((peer, True), None)
        elif session != self._session:
            # Only control is answered: an answer to bulk could overtake the Welcome, and undo it.
            return self._drop("fenced", None if is_bulk else Fenced())
        elif sequence <= self._last.get((peer, is_bulk), -1):
            return self._drop("duplicate")
        _remember(self._last, (peer, is_bulk), sequence)
        return Verdict(message)

    def _drop(self, reason: str, answer: Message | None = None) -> Verdict:
        self._dropped[reason] += 1
        return Verdict(None, answer)

    def _strike(self, peer: str, error: BadFrame) -> Verdict:
        strikes = self._strikes.get(peer, 0) + 1
        _remember(self._strikes, peer, strikes)
        if isinstance(error, ProtocolMismatch):
            return self._drop(error.reason, Reject(str(error)))
        is_last = strikes == MAX_STRIKES
        return self._drop(
            error.reason, Reject(f"{strikes} bad messages, the last one: {error}") if is_last else None
        )


class SelectorGate:
    """Judges what the trainer sends."""

    def __init__(self, dropped: Counter[str]) -> None:
        self._session = NO_SESSION
        self._dropped = dropped
        self._last = {False: -1, True: -1}

    @property
    def session(self) -> bytes:
        """The trainer's session; NO_SESSION until Welcome, and again after Fenced."""
        return self._session

    @session.setter
    def session(self, session: bytes) -> None:
        # Another trainer counts its messages from 0; the same one, welcoming twice, counts on.
        if session != self._session:
            self._session = session
            self._last = {False: -1, True: -1}

    def judge(self, frames: Sequence[Buffer], *, is_bulk: bool) -> Message | None:
        """The message, if the selector should have it."""
        try:
            session, sequence, message = _opened(frames, TO_SELECTOR, is_bulk)
        except BadFrame as error:
            return self._drop(error.reason)
        # Taken whatever its session: a trainer may reject whom it never welcomed.
        if isinstance(message, Reject):
            return message
        if isinstance(message, Fenced):
            # The trainer fences every message of an old queue; one hello answers them all.
            if self._session == NO_SESSION:
                return self._drop("fenced")
            self.session = NO_SESSION
            return message
        if isinstance(message, Welcome):
            self.session = session
        elif session != self._session:
            return self._drop("foreign")
        if sequence <= self._last[is_bulk]:
            return self._drop("duplicate")
        self._last[is_bulk] = sequence
        return message

    def _drop(self, reason: str) -> Message | None:
        self._dropped[reason] += 1
        return None


def _opened(frames: Sequence[Buffer], accepted: tuple[type[Message], ...], is_bulk: bool) -> Envelope:
    envelope = decode(frames)
    if not isinstance(envelope.message, accepted) or isinstance(envelope.message, BULK) != is_bulk:
        raise BadFrame("misplaced", f"{type(envelope.message).__name__} does not belong on this socket")
    return envelope


def _remember(table: OrderedDict[Key, int], key: Key, value: int) -> None:
    table[key] = value
    table.move_to_end(key)
    if len(table) > MAX_PEERS:
        table.popitem(last=False)
