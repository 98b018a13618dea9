"""What a tracker is: a place outside of sbpipe that a run's numbers are copied to. Knows no library."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

ENDINGS = ("finished", "stopped", "failed", "killed", "running")
"""How a run stands when a tracker is told that no more will come; `running` if only the tracking ends."""


@dataclass(frozen=True)
class Tracked:
    """The run that is tracked."""

    path: Path
    project: str
    settings: Mapping[str, Any]
    """Every setting by its dotted key."""
    known_as: str | None = None
    """The id under which the tracker began with this run before; None at first."""

    @property
    def name(self) -> str:
        """What a person calls the run."""
        return self.path.name


class Tracker(Protocol):
    """One tracking library; every method may raise one of `errors`, and the tracker is then given up."""

    name: str
    purpose: str
    """What it is for, as a message about its missing library says it."""
    errors: tuple[type[Exception], ...]
    remembers: bool
    """Whether what was copied before stays and is added to; else the copy is made anew each time."""

    def start(self, run: Tracked) -> str:
        """Open the copy; the id under which to go on with it another time."""

    def scalars(self, values: Mapping[str, float], step: int, wall_time: float) -> None:
        """Numbers of one moment, under stable names."""

    def flush(self) -> None:
        """Hand over what was held back."""

    def finish(self, summary: Mapping[str, Any], ending: str) -> None:
        """Close the copy with the numbers of the whole run ({} if there are none) and one of `ENDINGS`."""
