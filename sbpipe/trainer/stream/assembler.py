"""From selections to train batches of exactly `batch_size`, first kept first trained. Pure."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sbpipe.records import Floats, Ids, Rates, TrainBatch

_COLUMNS = (
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


@dataclass(frozen=True)
class Kept:
    """Kept examples of one selection, by column; `ordinal` counts the run's candidates up to each of them."""

    example_ids: Ids
    epochs: Ids
    scores: Floats
    keep_probability: Floats
    version: Ids
    fast_version: Ids
    arrived_at_step: Ids
    target_keep: Rates
    is_fill: NDArray[np.bool_]
    lease_ids: Ids
    ordinal: Ids


class Assembler:
    """A queue of kept examples."""

    def __init__(self, batch_size: int) -> None:
        self._batch_size = batch_size
        self._columns: dict[str, NDArray[np.generic]] = {}

    def __len__(self) -> int:
        return len(self._columns["example_ids"]) if self._columns else 0

    def add(self, kept: Kept) -> None:
        """Append the kept examples of one selection."""
        for name in _COLUMNS:
            column = getattr(kept, name)
            self._columns[name] = (
                np.concatenate([self._columns[name], column]) if name in self._columns else column
            )

    def take(self, step: int) -> tuple[TrainBatch, Ids] | None:
        """The next train batch and the lease of each of its examples, if there are enough kept examples."""
        if len(self) < self._batch_size:
            return None
        front = {name: column[: self._batch_size] for name, column in self._columns.items()}
        self._columns = {name: column[self._batch_size :] for name, column in self._columns.items()}
        # Which lease an example came from is the ledger's affair; training must not depend on it.
        lease_ids, ordinal = front.pop("lease_ids"), front.pop("ordinal")
        return TrainBatch(step=step, candidates=int(ordinal.max()), **front), lease_ids  # type: ignore[arg-type, return-value]

    def put_back(self, batches: list[tuple[TrainBatch, Ids]]) -> None:
        """Batches that were taken and not trained return to the front."""
        waiting, self._columns = self._columns, {}
        for batch, lease_ids in batches:
            size = len(batch.example_ids)
            columns = {
                name: getattr(batch, name) for name in _COLUMNS if name not in ("lease_ids", "ordinal")
            }
            self.add(Kept(**columns, lease_ids=lease_ids, ordinal=np.full(size, batch.candidates)))
        if waiting:
            self.add(Kept(**waiting))  # type: ignore[arg-type]

    def state(self) -> dict[str, NDArray[np.generic]]:
        """For the checkpoint."""
        return dict(self._columns)

    def restore(self, state: dict[str, NDArray[np.generic]]) -> None:
        """Go on from a checkpoint."""
        self._columns = dict(state)
