"""Rare events that come in a storm: the first are written, then a few, and how many were left out. Pure."""

from collections.abc import Iterator

ALWAYS = 1000
"""So many of each rare kind are written, however fast they come."""
EVERY_S = 60.0
"""After that, one of a kind in so many seconds."""
UNGATED = frozenset(
    (
        *("start", "resumed", "failed", "summary", "built"),
        *("step", "steps", "selection", "selections", "progress", "eval", "scores"),
    )
)
"""Kinds that are never left out: few by nature, or thinned with care where they are made."""


class StormGate:
    """Lets events through or counts them."""

    def __init__(self) -> None:
        self._num_let: dict[str, int] = {}
        self._next: dict[str, float] = {}
        self._num_left_out: dict[str, int] = {}

    def admit(self, kind: str, now: float) -> tuple[bool, int]:
        """Whether an event is to be written, and how many of its kind were not since the last one."""
        if kind in UNGATED:
            return True, 0
        num_let = self._num_let.get(kind, 0)
        if num_let >= ALWAYS and now < self._next.get(kind, 0.0):
            self._num_left_out[kind] = self._num_left_out.get(kind, 0) + 1
            return False, 0
        self._num_let[kind] = num_let + 1
        self._next[kind] = now + EVERY_S
        return True, self._num_left_out.pop(kind, 0)

    def take_left_out(self) -> Iterator[tuple[str, int]]:
        """Every kind of which some were left out since the last that was written."""
        yield from self._num_left_out.items()
        self._num_left_out = {}
