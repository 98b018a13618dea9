"""Remembers in the run directory how much of a run a tracker has: tracking again adds only what is new."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from sbpipe.files import write_atomically
from sbpipe.runs.names.files import TRACKERS


@dataclass
class Bookmark:
    """How much of one run one tracker has."""

    known_as: str | None = None
    last_steps: dict[str, int] = field(default_factory=dict)
    """The last step copied, by kind of event."""

    @classmethod
    def read(cls, run: Path, tracker: str) -> "Bookmark":
        """The bookmark; an empty one if there is none, or it cannot be read."""
        try:
            found = json.loads((run / TRACKERS / f"{tracker}.json").read_text(encoding="utf-8"))
            steps = {str(kind): int(step) for kind, step in found["last_steps"].items()}
            return cls(None if found["known_as"] is None else str(found["known_as"]), steps)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return cls()

    def write(self, run: Path, tracker: str) -> None:
        """Write it for the next time."""
        (run / TRACKERS).mkdir(exist_ok=True)
        write_atomically(run / TRACKERS / f"{tracker}.json", json.dumps(asdict(self), indent=2) + "\n")

    def is_new(self, kind: str, step: int) -> bool:
        """Whether an event is later than all copied ones of its kind; if so, it counts as copied now."""
        if step <= self.last_steps.get(kind, -1):
            return False
        self.last_steps[kind] = step
        return True
