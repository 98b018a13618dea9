"""The protocol of a tracker: a service outside of sbpipe that gets a run's numbers. Knows no library."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

ENDINGS = ("finished", "stopped", "failed", "killed", "running")
"""How the run ended when a tracker is closed; `running` if only the tracking ends."""


@dataclass(frozen=True)
class Tracked:
    """The run that is tracked."""

    path: Path
    project: str
    settings: Mapping[str, Any]
    """Every setting by its dotted key."""
    known_as: str | None = None
    """The id that the tracker gave this run earlier; None the first time."""

    @property
    def name(self) -> str:
        """The run's name for people."""
        return self.path.name


class Tracker(Protocol):
    """One tracking library. Every method may raise one of `errors`; the tracker is then given up."""

    name: str
    purpose: str
    """What it is for, as the message about a missing library says."""
    errors: tuple[type[Exception], ...]
    remembers: bool
    """Whether an earlier copy is kept and added to; otherwise the copy is made again each time."""

    def start(self, run: Tracked) -> str:
        """Open the copy; returns the id by which to continue it another time."""

    def scalars(self, values: Mapping[str, float], step: int, wall_time: float) -> None:
        """Add the numbers of one event, under stable names."""

    def flush(self) -> None:
        """Send what is buffered."""

    def finish(self, summary: Mapping[str, Any], ending: str) -> None:
        """Close the copy with the numbers of the whole run ({} if there are none) and one of `ENDINGS`."""
