"""The processes of one run, by role. It starts nothing by itself."""

from collections.abc import Callable
from dataclasses import dataclass, field

from sbpipe.process.child import Child


@dataclass
class Crew:
    """All children of a supervisor.

    `trainer` is the trainer, or torchrun with several ranks of it. `renew` prepares it for a restart: from
    the last checkpoint (True), or from the beginning, because the run had not begun (False).
    """

    trainer: Child
    renew: Callable[[bool], None]
    selectors: list[Child] = field(default_factory=list)
    trackers: list[Child] = field(default_factory=list)

    def start(self) -> None:
        """Start all."""
        for child in self._children:
            child.start()

    def close(self) -> None:
        """Release what was kept of children that have ended."""
        for child in self._children:
            child.close()

    @property
    def _children(self) -> list[Child]:
        return [self.trainer, *self.selectors, *self.trackers]
