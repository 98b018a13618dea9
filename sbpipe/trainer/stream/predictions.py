"""The predictions of selectors' models in the last selections, until steering takes them. Pure.

Each is stored with the number of the batch being assembled, so that under a clock nothing depends on when an
answer arrives.
"""

from collections import deque
from typing import Any

import numpy as np

from sbpipe.records import Predicted, Selection

_MOST = 1024


class Predictions:
    """A queue: one thread appends, another takes, and neither waits for the other."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, Predicted]] = deque(maxlen=_MOST)

    def note(self, number: int, selection: Selection) -> None:
        """A selection arrived while batch `number` was being assembled."""
        if selection.predicted is not None:
            self._waiting.append((number, Predicted(selection.predicted, selection.places)))

    def take(self, step: int) -> list[Predicted]:
        """Remove and return what arrived up to the batch of this step."""
        taken = list[Predicted]()
        while self._waiting and self._waiting[0][0] <= step:
            taken.append(self._waiting.popleft()[1])
        return taken

    def state(self) -> list[tuple[Any, ...]]:
        """For the checkpoint."""
        return [
            (number, *(None if counts is None else counts.tolist() for counts in told))
            for number, told in self._waiting
        ]

    def restore(self, state: list[tuple[Any, ...]]) -> None:
        """Go on from a checkpoint."""
        for number, *told in state:
            by_class, by_place = (None if counts is None else np.array(counts, np.int32) for counts in told)
            assert by_class is not None
            self._waiting.append((number, Predicted(by_class, by_place)))
