"""The progress of making scores, and the time left. Counts batches."""

import time
from collections.abc import Callable
from dataclasses import dataclass

# A backward pass takes about as long as two forward passes.
TRAINED, RATED = 3, 1
"""The cost of a batch, in forward passes."""


@dataclass(frozen=True)
class Progress:
    """The current model, the share done of what was left at the start, and the time left, if known."""

    model: int
    models: int
    share: float
    left_s: float | None


Tell = Callable[[Progress], None]


class Meter:
    """Reports after each batch how much of the planned work is done."""

    def __init__(self, tell: Tell, *, models: int, work: int) -> None:
        self._tell = tell
        self._models = models
        self._work = max(1, work)
        self._done = 0
        self._first: tuple[float, int] | None = None
        self.model = 0

    def add(self, work: int) -> None:
        """Add `work` to what is done."""
        self._done += work
        now_s = time.perf_counter()
        # The first batch takes many times longer than the others, so the rate is measured from its end.
        self._first = self._first or (now_s, self._done)
        began_s, before = self._first
        left_s = (
            (now_s - began_s) * (self._work - self._done) / (self._done - before)
            if self._done > before
            else None
        )
        self._tell(Progress(self.model, self._models, min(1.0, self._done / self._work), left_s))
