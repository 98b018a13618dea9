"""Train batches on their way through a user's loop: handed out in parts, paired with their losses, stepped.

Loops fetch ahead, and losses come back in the order in which batches were handed out: the pairing is first
in, first out. Pure bookkeeping; it must not know the engine, the optimizer or what a batch holds.
"""

from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from sbpipe.errors import UserError
from sbpipe.records import Ids, Lot, TrainBatch


class LoopError(UserError):
    """The user's loop did something that selection cannot follow."""


@dataclass
class Flight:
    """One train batch: its parts, and the losses that have come back."""

    batch: TrainBatch
    parts: list[Lot]
    num_handed: int = 0
    losses: list[Any] = field(default_factory=list)
    """The losses of each part; with several ranks, handles that gather them during the backward pass."""

    @property
    def is_handed(self) -> bool:
        """Whether all parts were handed out."""
        return self.num_handed == len(self.parts)

    @property
    def is_weighed(self) -> bool:
        """Whether the losses of all parts are known."""
        return len(self.losses) == len(self.parts)

    def part(self, number: int) -> TrainBatch:
        """The examples of one part, with what is known of their selection."""
        if len(self.parts) == 1:
            return self.batch
        # Not the size of the part on this rank, which may be a share of it.
        size = len(self.batch.example_ids) // len(self.parts)
        return cut(self.batch, number * size, (number + 1) * size)


class Due(NamedTuple):
    """The part whose losses come next."""

    flight: Flight
    number: int

    @property
    def num_examples(self) -> int:
        """How many losses are expected."""
        return self.flight.parts[self.number].num_examples


class Handed:
    """All train batches that the loop has drawn and not finished, oldest first."""

    def __init__(self, rank: int = 0, world: int = 1) -> None:
        self._rank, self._world = rank, world
        self._flights: deque[Flight] = deque()
        self.last_ids: Ids = np.empty(0, np.int64)
        """The examples of the part that was handed out last."""

    def __len__(self) -> int:
        return len(self._flights)

    @property
    def num_parts_out(self) -> int:
        """Parts handed out whose train batch is not finished."""
        return sum(flight.num_handed for flight in self._flights)

    @property
    def has_part(self) -> bool:
        """Whether some part is not handed out yet."""
        return self._unhanded is not None

    def add(self, batch: TrainBatch, parts: list[Lot]) -> None:
        """Add a train batch that the engine gave."""
        self._flights.append(Flight(batch, parts))

    def next_part(self) -> Any:
        """The next part to hand out."""
        flight = self._unhanded
        assert flight is not None, "there is one"
        flight.num_handed += 1
        self.last_ids = flight.part(flight.num_handed - 1).example_ids[self._rank :: self._world]
        return flight.parts[flight.num_handed - 1].tree

    def due(self) -> Due:
        """The part whose losses come next."""
        for flight in self._flights:
            if len(flight.losses) < flight.num_handed:
                return Due(flight, len(flight.losses))
        raise LoopError(
            "weigh: the losses of every batch that was handed out are here already. Call weigh (or weights) "
            "once for each batch, in the order in which the loader gave them, and not while evaluating"
        )

    @property
    def weighed(self) -> Flight | None:
        """The oldest train batch if all its losses are here; an optimizer step finishes it."""
        return self._flights[0] if self._flights and self._flights[0].is_weighed else None

    @property
    def half_weighed(self) -> Flight | None:
        """The oldest train batch if the losses of some but not all of its parts are here."""
        flight = self._flights[0] if self._flights else None
        return flight if flight and flight.losses and not flight.is_weighed else None

    def finish(self) -> Flight:
        """Remove and return the oldest train batch, which is done."""
        return self._flights.popleft()

    def drop(self) -> Flight:
        """Remove and return the oldest train batch, which the loop skips."""
        if not self._flights:
            raise LoopError(
                "skip: no batch is out. Call it once for a batch that the loader gave, in place of weigh"
            )
        return self.finish()

    def take_back(self) -> None:
        """A new pass begins: parts whose batch was not finished are handed out again."""
        for flight in self._flights:
            flight.num_handed, flight.losses = 0, []

    @property
    def _unhanded(self) -> Flight | None:
        return next((flight for flight in self._flights if not flight.is_handed), None)


def cut(batch: TrainBatch, start: int, stop: int) -> TrainBatch:
    """Some examples of a train batch, in their order."""
    columns: dict[str, Any] = {
        name: value[start:stop] for name, value in vars(batch).items() if isinstance(value, np.ndarray)
    }
    return replace(batch, **columns)
