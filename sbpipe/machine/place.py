"""Which replica this process is, told through its environment. No torch."""

import os
from dataclasses import dataclass
from pathlib import Path

_VARIABLE = "SBPIPE_REPLICA"


@dataclass(frozen=True)
class Place:
    """One replica among several; they meet at a file."""

    rank: int
    world: int
    meeting: Path

    def environment(self) -> dict[str, str]:
        """What the process of this replica must find in its environment."""
        return {_VARIABLE: f"{self.rank}:{self.world}:{self.meeting}"}

    def cores(self, available: list[int], threads: int) -> list[int]:
        """Its share of the cores: equal shares side by side, `threads` of each if that is set."""
        each = max(1, len(available) // self.world)
        first = self.rank * each % len(available)
        return available[first : first + each][: threads or None]


def own_place() -> Place | None:
    """This process's place; None if it was not started as a replica."""
    text = os.environ.get(_VARIABLE, "")
    if not text:
        return None
    # No further than that: a path may hold colons.
    rank, world, meeting = text.split(":", 2)
    return Place(int(rank), int(world), Path(meeting))
