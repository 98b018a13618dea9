"""What rank 0 tells the others, as numbers: what to do next, and how to weigh a step. Knows no process group.

Never pickled: a word is one row of float64, followed by a table where the weights of a step need one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

import torch

from sbpipe.records import Part
from sbpipe.trainer.ranks.share import share_of
from sbpipe.trainer.steering.fresh import Recent


class Do(IntEnum):
    """What all ranks do now, together."""

    END = 0
    STEP = 1
    EVALUATE = 2
    """Run the test split through a sharded model: no rank can do it alone."""
    GATHER = 3
    """Gather weights and optimizer state of a sharded model: for a checkpoint of whole tensors."""
    RESTORE = 4
    """Take the state that rank 0 sends."""
    PUBLISH = 5
    """Gather a part of a sharded model's weights for the selectors, outside of a step."""
    START = 6
    """A user's own loop begins."""
    SAVE = 7
    """Write this share of a sharded model's state, beside the loop."""
    DIGEST = 8
    """Gather the weights of a sharded model one by one: for its fingerprint."""
    SKIP = 9
    """A user's own loop drops a batch."""


class By(IntEnum):
    """How the weights of a step's examples are found."""

    NOTHING = 0
    """All count alike."""
    TABLE = 1
    """Known before the losses are."""
    BATCH = 2
    """From the losses of the whole batch: rank 0 gathers these, then sends the weights."""
    RECENT = 3
    """Each rank alone, from its fresh losses and those of all ranks up to the step before."""


@dataclass(frozen=True)
class Word:
    """One thing to do."""

    do: Do
    step: int = 0
    """Steps done before it."""
    progress: float = 0.0
    by: By = By.NOTHING
    part: Part = Part.WHOLE
    intervals: Mapping[Part, int] = field(default_factory=dict)
    """How often each part of the weights is published, in steps."""
    position: int = 0
    """Where in its pass a user's own loop begins."""
    table: torch.Tensor | None = None
    """What the weights are computed from, in float64."""

    @property
    def row(self) -> torch.Tensor:
        """The row that is sent; the table follows it."""
        every = [self.intervals.get(part, 0) for part in Part]
        num_table = 0 if self.table is None else len(self.table)
        part = list(Part).index(self.part)
        return torch.tensor(
            [self.do, self.step, self.progress, self.by, part, *every, self.position, num_table],
            dtype=torch.float64,
        )

    @classmethod
    def of(cls, row: torch.Tensor) -> "Word":
        """The inverse of `row`, without the table."""
        do, step, progress, by, part, *every, position, _ = row.tolist()
        intervals = {known: int(given) for known, given in zip(Part, every, strict=True) if given}
        return cls(
            Do(int(do)), int(step), progress, By(int(by)), list(Part)[int(part)], intervals, int(position)
        )

    def due(self, step: int) -> list[Part]:
        """The parts that are published after `step` steps: a function of the number alone."""
        return [part for part in self.intervals if step % self.intervals[part] == 0]


LENGTH = len(Word(Do.END).row)
"""Numbers of a row."""


def weights_of_share(word: Word, losses: torch.Tensor, rank: int, world: int) -> torch.Tensor | None:
    """The weight of each example of a rank's share, where no other rank's losses are needed; None = 1."""
    if word.table is None or not len(losses):
        return None
    if word.by is By.TABLE:
        return share_of(word.table, rank, world).to(losses)
    return Recent.of(word.table).share(rank, world).weights(losses)
