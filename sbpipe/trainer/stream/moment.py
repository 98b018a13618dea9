"""The state of a run at one moment: the plain numbers by which leases are granted."""

from typing import NamedTuple


class Moment(NamedTuple):
    """What the loop has, and what it will need."""

    batch_size: int
    num_assembled: int
    """Train batches completed so far, which is the number of the one being assembled."""
    num_started: int
    """How many of them the loop has begun to train."""
    steps_done: int
    leftover: int
    """Kept examples that do not fill a batch."""
    is_waiting: bool
    """Whether the loop has nothing to train on."""
    keep: float
    """The keep rate that leases aim at."""
    step_s: float | None
    """The time of a step for a loop that does not wait; None = not known, or not needed."""
    ahead: float
    """Train batches to lease on top of `depth - 1`."""

    @property
    def on_hand(self) -> int:
        """Kept examples that wait to be trained: the queue."""
        return self.leftover + (self.num_assembled - self.num_started) * self.batch_size
