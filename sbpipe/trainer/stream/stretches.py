"""Where a run keeps every candidate: warm-up and anneal, with integer boundaries in the line. Pure."""

import math

from sbpipe.config import Config


class Stretches:
    """The first and last candidates of a run of `limit` candidates (None = steps or seconds end it)."""

    def __init__(self, config: Config, limit: int | None) -> None:
        selection = config.selection
        self._warmup = selection.history if selection.warmup < 0 else selection.warmup
        self._anneal_at = None if limit is None else limit - math.floor(selection.anneal * limit)
        self._changes = [self._warmup] if self._anneal_at is None else sorted([self._warmup, self._anneal_at])
        steps = config.train.steps if limit is None else 0
        self._anneal_step = math.ceil((1.0 - selection.anneal) * steps) if steps else None

    def at(self, place: int, batch: int) -> tuple[bool, int | None]:
        """Whether the candidate at a place is always kept, and the place where that next changes.

        `batch` is the earliest train batch it can go into. No lease reaches across the change.
        """
        return self._keep_all(place, batch), next((each for each in self._changes if each > place), None)

    def _keep_all(self, place: int, batch: int) -> bool:
        if place < self._warmup:
            return True
        if self._anneal_at is not None:
            return place >= self._anneal_at
        return self._anneal_step is not None and batch >= self._anneal_step
