"""From selections to train batches of exactly `batch_size`, first kept first trained. Pure."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from sbpipe.records import Ids, Lease, Selection, TrainBatch
from sbpipe.trainer.stream.versions import fast_version_of

Columns = dict[str, Any]
"""Kept examples by column; `ordinal` counts the run's candidates up to each of them."""
_NAMES = (
    "example_ids",
    "epochs",
    "scores",
    "keep_probability",
    "version",
    "fast_version",
    "arrived_at_step",
    "target_keep",
    "is_fill",
    "lease_ids",
    "ordinal",
)


class Accepted(NamedTuple):
    """An accepted selection, and what all its kept examples have in common."""

    lease: Lease
    selection: Selection
    example_ids: Ids
    """The candidates that it considered."""
    versions: Ids | None
    """One per kept example, if they differ."""
    arrived_at_step: int
    is_fill: bool
    considered_before: int
    """Candidates considered in the run before its first one."""


def _kept_of(accepted: Sequence[Accepted]) -> Columns:
    """The kept examples of some selections, in order; all at once, because each has only a handful."""
    selections = [one.selection for one in accepted]
    counts = [len(selection.kept) for selection in selections]
    starts = np.cumsum([0, *(len(selection.scores) for selection in selections[:-1])])
    kept = np.concatenate([selection.kept for selection in selections]).astype(np.int64)
    places = kept + starts.repeat(counts)
    of_leases = [
        (
            one.lease.epoch,
            one.lease.lease_id,
            one.arrived_at_step,
            one.selection.version,
            fast_version_of(one.lease, one.selection),
            one.considered_before + 1,
        )
        for one in accepted
    ]
    numbers = np.array(of_leases, np.int64).repeat(counts, 0)
    epochs, lease_ids, arrived, version, fast_version, first = np.ascontiguousarray(numbers.T)
    for one, end in zip(accepted, np.cumsum(counts).tolist(), strict=True):
        if one.versions is not None:
            own = slice(end - len(one.versions), end)
            version[own] = fast_version[own] = one.versions
    return {
        "example_ids": np.concatenate([one.example_ids for one in accepted])[places],
        "epochs": epochs,
        "scores": np.concatenate([selection.scores for selection in selections])[places],
        "keep_probability": np.concatenate([selection.keep_probability for selection in selections])[places],
        "version": version,
        "fast_version": fast_version,
        "arrived_at_step": arrived,
        "target_keep": np.repeat([one.lease.keep for one in accepted], counts),
        "is_fill": np.repeat([one.is_fill for one in accepted], counts),
        "lease_ids": lease_ids,
        "ordinal": first + kept,
    }


class Assembler:
    """A queue of kept examples."""

    def __init__(self, batch_size: int) -> None:
        self._batch_size = batch_size
        self._kept: Columns = {}
        # Queued behind `_kept`; turned into columns when a batch is cut, not on arrival.
        self._accepted: list[Accepted] = []
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def add(self, accepted: Accepted) -> None:
        """Append the kept examples of one selection."""
        self._accepted.append(accepted)
        self._length += len(accepted.selection.kept)

    def take(self, step: int) -> tuple[TrainBatch, Ids] | None:
        """The next train batch and the lease of each of its examples, if there are enough kept examples."""
        size = self._batch_size
        if self._length < size:
            return None
        kept = self._settled()
        columns = {name: column[:size] for name, column in kept.items()}
        self._length -= size
        self._kept = {name: column[size:] for name, column in kept.items()} if self._length else {}
        # Only the ledger needs to know the lease of an example; training must not depend on it.
        lease_ids, ordinal = columns.pop("lease_ids"), columns.pop("ordinal")
        return TrainBatch(step=step, candidates=int(ordinal.max()), **columns), lease_ids

    def _settled(self) -> Columns:
        """All waiting examples, by column."""
        if self._accepted:
            newer, self._accepted = _kept_of(self._accepted), []
            self._kept = _joined([self._kept, newer]) if self._kept else newer
        return self._kept

    def put_back(self, batches: Sequence[tuple[TrainBatch, Ids]]) -> None:
        """Return batches that were taken and not trained to the front."""
        if not batches:
            return
        back = []
        for batch, lease_ids in batches:
            ordinal = np.full(len(batch.example_ids), batch.candidates)
            own = {"lease_ids": lease_ids, "ordinal": ordinal}
            back.append({name: own[name] if name in own else getattr(batch, name) for name in _NAMES})
        waiting = self._settled()
        self.restore(_joined([*back, waiting] if waiting else back))

    def state(self) -> Columns:
        """For the checkpoint."""
        return self._settled() if self._length else {}

    def restore(self, state: Columns) -> None:
        """Go on from a checkpoint."""
        self._accepted = []
        self._kept, self._length = state, len(state["example_ids"]) if state else 0


def _joined(some: Sequence[Columns]) -> Columns:
    """Concatenated columns."""
    return {name: np.concatenate([kept[name] for kept in some]) for name in _NAMES}
