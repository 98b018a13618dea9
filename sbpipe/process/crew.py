"""The processes of one run, by what they are for. It starts nothing of its own accord."""

from collections.abc import Callable
from dataclasses import dataclass, field

from sbpipe.process.child import Child


@dataclass
class Crew:
    """All children of a supervisor.

    `renew` prepares the trainer and its replicas for another start: to go on from the last checkpoint (True),
    or to begin anew, because the run had not begun.
    """

    trainer: Child
    renew: Callable[[bool], None]
    replicas: list[Child] = field(default_factory=list)
    selectors: list[Child] = field(default_factory=list)
    trackers: list[Child] = field(default_factory=list)

    @property
    def trainers(self) -> list[Child]:
        """Those that train, and die together."""
        return [self.trainer, *self.replicas]

    def start(self) -> None:
        """Start all."""
        for child in (*self.trainers, *self.selectors, *self.trackers):
            child.start()
