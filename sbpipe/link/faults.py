"""A port that misbehaves on purpose, to prove that nothing is lost or trained twice. Knows no role."""

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from sbpipe.link.messages import Message
from sbpipe.link.ports import Port

MAX_DELAY = 4

Item = TypeVar("Item")


@dataclass(frozen=True)
class Faults:
    """The chance of each fault, for each message."""

    drop: float = 0.0
    duplicate: float = 0.0
    delay: float = 0.0
    reorder: float = 0.0


@dataclass
class _Lane(Generic[Item]):
    """One direction: an item comes out now, later, twice, after the next one, or never."""

    faults: Faults
    chance: random.Random
    seen: Counter[str]
    turn: int = 0
    delayed: list[tuple[int, Item]] = field(default_factory=list)
    overtaken: list[tuple[int, Item]] = field(default_factory=list)

    def next_turn(self) -> list[Item]:
        """The items that were held back and are due now."""
        self.turn += 1
        due = [item for turn, item in self.delayed + self.overtaken if turn <= self.turn]
        self.delayed = [(turn, item) for turn, item in self.delayed if turn > self.turn]
        self.overtaken = [(turn, item) for turn, item in self.overtaken if turn > self.turn]
        return due

    def through(self, item: Item) -> list[Item]:
        """The items that come out when this one goes in."""
        if self._strikes("drop", self.faults.drop):
            return []
        copies = 2 if self._strikes("duplicate", self.faults.duplicate) else 1
        out: list[Item] = []
        for _ in range(copies):
            if self._strikes("delay", self.faults.delay):
                self.delayed.append((self.turn + self.chance.randint(1, MAX_DELAY), item))
            elif self._strikes("reorder", self.faults.reorder):
                # Waits for the next item to overtake it, but not forever.
                self.overtaken.append((self.turn + 2, item))
            else:
                out.append(item)
        if out:
            out += [item for _, item in self.overtaken]
            self.overtaken = []
        return out

    def _strikes(self, name: str, probability: float) -> bool:
        # Always drawn, so that enabling one fault does not change the draws of the others.
        is_hit = self.chance.random() < probability
        self.seen[name] += is_hit
        return is_hit


class FaultyPort:
    """Adds faults to what is sent and received, the same for the same seed and calls; `seen` counts them."""

    def __init__(self, port: Port, seed: int, **chances: float) -> None:
        """`chances` are those of `Faults`."""
        faults = Faults(**chances)
        self.seen: Counter[str] = Counter()
        self._port = port
        self._outgoing: _Lane[tuple[str, Message]] = _Lane(faults, random.Random(2 * seed), self.seen)
        self._incoming: _Lane[tuple[str, Message]] = _Lane(faults, random.Random(2 * seed + 1), self.seen)

    @property
    def session(self) -> bytes:
        """The session of the port inside."""
        return self._port.session

    @property
    def dropped(self) -> Counter[str]:
        """What the port inside dropped; the faults are in `seen`."""
        return self._port.dropped

    def send(self, peer: str, message: Message) -> bool:
        """True also for messages that are lost or late, as on a real wire."""
        sent = [self._port.send(*item) for item in self._outgoing.through((peer, message))]
        return all(sent)

    def post(self, peer: str, message: Message) -> bool:
        """The same for `post`."""
        posted = [self._port.post(*item) for item in self._outgoing.through((peer, message))]
        return all(posted)

    def receive(self, timeout_s: float) -> list[tuple[str, Message]]:
        """Messages that were held back and are due, then those that arrive now."""
        for peer, message in self._outgoing.next_turn():
            self._port.send(peer, message)
        came = self._incoming.next_turn()
        for item in self._port.receive(timeout_s):
            came += self._incoming.through(item)
        return came

    def wake(self) -> None:
        """Passed on."""
        self._port.wake()

    def refuse(self, peer: str) -> None:
        """Passed on."""
        self._port.refuse(peer)

    def release(self, peer: str) -> None:
        """Passed on."""
        self._port.release(peer)

    def close(self) -> None:
        """Passed on; held-back messages are lost."""
        self._port.close()
