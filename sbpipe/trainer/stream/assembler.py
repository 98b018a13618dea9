"""From selections to train batches of exactly `batch_size`, first kept first trained. Pure."""

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sbpipe.records import Floats, Ids, Lease, Rates, Selection, TrainBatch
from sbpipe.trainer.stream.versions import fast_version_of

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

    @classmethod
    def of(
        cls,
        lease: Lease,
        selection: Selection,
        example_ids: Ids,
        *,
        versions: Ids | None,
        arrived_at_step: int,
        is_fill: bool,
        considered_before: int,
    ) -> "Kept":
        """What a selection kept of the candidates it considered; `versions` per kept one, if they differ."""
        kept, num_kept = selection.kept, len(selection.kept)
        of_lease = (
            lease.epoch,
            lease.lease_id,
            arrived_at_step,
            selection.version,
            fast_version_of(lease, selection),
        )
        # In one array: to make a small one takes longer than to fill it.
        epochs, lease_ids, arrived, version, fast_version = np.array(of_lease, np.int64)[:, None].repeat(
            num_kept, 1
        )
        return cls(
            example_ids=example_ids[kept],
            epochs=epochs,
            scores=selection.scores[kept],
            keep_probability=selection.keep_probability[kept],
            version=version if versions is None else versions,
            fast_version=fast_version if versions is None else versions,
            arrived_at_step=arrived,
            target_keep=np.full(num_kept, lease.keep),
            is_fill=np.full(num_kept, is_fill),
            lease_ids=lease_ids,
            ordinal=considered_before + kept.astype(np.int64) + 1,
        )

    def part(self, places: slice) -> "Kept":
        """Those at these places."""
        return Kept(**{name: getattr(self, name)[places] for name in _COLUMNS})


class Assembler:
    """A queue of kept examples."""

    def __init__(self, batch_size: int) -> None:
        self._batch_size = batch_size
        # Joined when a batch is cut, not when a selection comes: half as many copies.
        self._waiting: deque[Kept] = deque()
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def add(self, kept: Kept) -> None:
        """Append the kept examples of one selection."""
        self._waiting.append(kept)
        self._length += len(kept.example_ids)

    def take(self, step: int) -> tuple[TrainBatch, Ids] | None:
        """The next train batch and the lease of each of its examples, if there are enough kept examples."""
        size = self._batch_size
        if self._length < size:
            return None
        front, count = [], 0
        while count < size:
            front.append(self._waiting.popleft())
            count += len(front[-1].example_ids)
        if count > size:
            last = front.pop()
            cut = len(last.example_ids) - (count - size)
            front.append(last.part(slice(None, cut)))
            self._waiting.appendleft(last.part(slice(cut, None)))
        self._length -= size
        columns = _joined(front)
        # Which lease an example came from is the ledger's affair; training must not depend on it.
        lease_ids, ordinal = columns.pop("lease_ids"), columns.pop("ordinal")
        return TrainBatch(step=step, candidates=int(ordinal.max()), **columns), lease_ids

    def put_back(self, batches: list[tuple[TrainBatch, Ids]]) -> None:
        """Batches that were taken and not trained return to the front."""
        back = []
        for batch, lease_ids in batches:
            size = len(batch.example_ids)
            columns = {
                name: getattr(batch, name) for name in _COLUMNS if name not in ("lease_ids", "ordinal")
            }
            back.append(Kept(**columns, lease_ids=lease_ids, ordinal=np.full(size, batch.candidates)))
            self._length += size
        self._waiting.extendleft(reversed(back))

    def state(self) -> dict[str, NDArray[np.generic]]:
        """For the checkpoint."""
        return _joined(self._waiting) if self._waiting else {}

    def restore(self, state: dict[str, NDArray[np.generic]]) -> None:
        """Go on from a checkpoint."""
        self._waiting.clear()
        self._length = 0
        if state:
            self.add(Kept(**state))  # type: ignore[arg-type]


def _joined(some: Collection[Kept]) -> dict[str, Any]:
    """The columns of some selections, one after another."""
    return {name: np.concatenate([getattr(kept, name) for kept in some]) for name in _COLUMNS}
