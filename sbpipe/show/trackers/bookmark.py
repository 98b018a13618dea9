"""How far a tracker has come with a run, left in the run directory: tracking again adds only what is new."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from sbpipe.files import write_atomically
from sbpipe.runs.names.files import TRACKERS


@dataclass
class Bookmark:
    """How far one tracker has come with one run."""

    known_as: str | None = None
    last_steps: dict[str, int] = field(default_factory=dict)
    """The last step copied, by kind of event."""

    @classmethod
    def read(cls, run: Path, tracker: str) -> "Bookmark":
        """What is remembered; nothing if nothing is, or if it cannot be read."""
        try:
            found = json.loads((run / TRACKERS / f"{tracker}.json").read_text(encoding="utf-8"))
            steps = {str(kind): int(step) for kind, step in found["last_steps"].items()}
            return cls(None if found["known_as"] is None else str(found["known_as"]), steps)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return cls()

    def write(self, run: Path, tracker: str) -> None:
        """Leave it for the next time."""
        (run / TRACKERS).mkdir(exist_ok=True)
        write_atomically(run / TRACKERS / f"{tracker}.json", json.dumps(asdict(self), indent=2) + "\n")

    def is_new(self, kind: str, step: int) -> bool:
        """Whether an event lies behind all of its kind that were copied; if so, it counts as copied."""
        if step <= self.last_steps.get(kind, -1):
            return False
        self.last_steps[kind] = step
        return True
