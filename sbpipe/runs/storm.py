"""Limits storms of rare events: the first are written, then a few with a count of the rest. Pure."""

from collections.abc import Iterator

ALWAYS = 1000
"""The first so many events of a rare kind are written, however fast they come."""
EVERY_S = 60.0
"""After that, one event of a kind is written in so many seconds."""
UNGATED = frozenset(
    (
        *("start", "resumed", "failed", "summary", "built"),
        *("step", "steps", "selection", "selections", "progress", "eval", "scores"),
    )
)
"""Kinds that are never left out: they are few, or are thinned where they are made."""


class StormGate:
    """Lets events through or counts them."""

    def __init__(self) -> None:
        self._num_let: dict[str, int] = {}
        self._next: dict[str, float] = {}
        self._num_left_out: dict[str, int] = {}

    def admit(self, kind: str, now: float) -> tuple[bool, int]:
        """Whether to write an event, and how many of its kind were left out since the last written one."""
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
        """Each kind with left-out events, and how many since the last written one."""
        yield from self._num_left_out.items()
        self._num_left_out = {}
