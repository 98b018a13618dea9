"""The processes of one run, by what they are for. It starts nothing of its own accord."""

from collections.abc import Callable
from dataclasses import dataclass, field

from sbpipe.process.child import Child


@dataclass
class Crew:
    """All children of a supervisor.

    `trainer` is the trainer, or torchrun, which has several ranks of it. `renew` prepares it for another
    start: to go on from the last checkpoint (True), or to begin anew, because the run had not begun.
    """

    trainer: Child
    renew: Callable[[bool], None]
    selectors: list[Child] = field(default_factory=list)
    trackers: list[Child] = field(default_factory=list)

    def start(self) -> None:
        """Start all."""
        for child in (self.trainer, *self.selectors, *self.trackers):
            child.start()
