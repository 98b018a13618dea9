"""Admission: for each list of frames, what is passed on, what is answered, and what is counted.

The trainer's gate distrusts peers (strikes, refusal, fencing of other sessions); the selector's learns the
session from Welcome. Pure bookkeeping over frames, so every rule is testable without a socket; it must not
know zmq.

Counted reasons: prefix, protocol, type, header, fields, arrays, meaning (found by `frames`);
misplaced (a message of the other pair or direction, or a second name for one connection); taken (a Hello in
the name of another connection); crowded (no room for another connection); refused; fenced; duplicate; foreign
(at the selector: of another session).
"""

from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from sbpipe.link.frames import Buffer, Envelope, ProtocolMismatch, decode
from sbpipe.link.kinds import BadFrame
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


class Verdict(NamedTuple):
    """What to pass on, from which peer, and what to answer.

    `holder` is the connection that already holds the name of a Hello: the caller checks whether it is alive.
    """

    peer: str = ""
    message: Message | None = None
    answer: Message | None = None
    holder: bytes | None = None


@dataclass
class _Caller:
    """One connection, by its route: its name, its bad messages, the last sequence number of each socket."""

    name: str = ""
    strikes: int = 0
    last: dict[bool, int] = field(default_factory=dict)


class TrainerGate:
    """Judges what selectors send.

    It remembers facts about connections, never about claimed names: a liar can harm only itself.
    """

    def __init__(self, session: bytes, dropped: Counter[str]) -> None:
        self._session = session
        self._dropped = dropped
        self._callers: OrderedDict[bytes, _Caller] = OrderedDict()
        self._routes: dict[str, bytes] = {}

    def route_of(self, peer: str) -> bytes | None:
        """The connection of a peer that has said hello."""
        return self._routes.get(peer)

    @property
    def names(self) -> list[str]:
        """The peers that have said hello."""
        return list(self._routes)

    def name_of(self, route: bytes) -> str:
        """The peer of a connection, or ""."""
        caller = self._callers.get(route)
        return caller.name if caller else ""

    def refuse(self, peer: str) -> None:
        """Drop everything of this peer's connection from now on, unread."""
        route = self._routes.get(peer)
        if route is not None:
            self._callers[route].strikes = MAX_STRIKES

    def release(self, peer: str) -> None:
        """Forget a peer: its connection must say hello again, and another one may take the name."""
        route = self._routes.pop(peer, None)
        if route is not None:
            self._callers[route].name = ""

    def is_refused(self, route: bytes) -> bool:
        """Whether this connection is refused."""
        caller = self._callers.get(route)
        return caller is not None and caller.strikes >= MAX_STRIKES

    def judge(self, route: bytes, frames: Sequence[Buffer], *, is_bulk: bool) -> Verdict:
        """Judge one list of frames."""
        caller = self._caller(route)
        if caller is None:
            return self._drop("crowded")
        if caller.strikes >= MAX_STRIKES:
            return self._drop("refused")
        try:
            session, sequence, message = _opened(frames, TO_TRAINER, is_bulk)
            if isinstance(message, Hello) and caller.name not in ("", message.selector_id):
                raise BadFrame("misplaced", f"{caller.name} says hello as {message.selector_id}")
        except BadFrame as error:
            return self._strike(caller, error)
        if isinstance(message, Hello):
            holder = self._routes.setdefault(message.selector_id, route)
            if holder != route:
                # The first connection keeps the name until it is silent or gone.
                return self._drop("taken")._replace(holder=holder)
            # A selector that says hello restarts its sequence numbers.
            caller.name, caller.last = message.selector_id, {}
        elif session != self._session or not caller.name:
            # Only control is answered: an answer to bulk could overtake the Welcome, and undo it.
            return self._drop("fenced", None if is_bulk else Fenced())
        elif sequence <= caller.last.get(is_bulk, -1):
            return self._drop("duplicate")
        caller.last[is_bulk] = sequence
        return Verdict(caller.name, message)

    def _caller(self, route: bytes) -> _Caller | None:
        """The entry of a connection; None if there is no room for another one."""
        caller = self._callers.get(route)
        if caller is None:
            if len(self._callers) >= MAX_PEERS:
                nameless = next((old for old, known in self._callers.items() if not known.name), None)
                if nameless is None:
                    return None
                del self._callers[nameless]
            caller = self._callers[route] = _Caller()
        return caller

    def _drop(self, reason: str, answer: Message | None = None) -> Verdict:
        self._dropped[reason] += 1
        return Verdict(answer=answer)

    def _strike(self, caller: _Caller, error: BadFrame) -> Verdict:
        caller.strikes += 1
        if isinstance(error, ProtocolMismatch):
            return self._drop(error.reason, Reject(str(error)))
        is_last = caller.strikes == MAX_STRIKES
        return self._drop(
            error.reason, Reject(f"{caller.strikes} bad messages, the last one: {error}") if is_last else None
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
        # Another trainer numbers its messages from 0; the same one, if it welcomes twice, continues.
        if session != self._session:
            self._session = session
            self._last = {False: -1, True: -1}

    def judge(self, frames: Sequence[Buffer], *, is_bulk: bool) -> Message | None:
        """The message, if the selector should have it."""
        try:
            session, sequence, message = _opened(frames, TO_SELECTOR, is_bulk)
        except BadFrame as error:
            return self._drop(error.reason)
        # Accepted from any session: a trainer may reject a selector that it never welcomed.
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
