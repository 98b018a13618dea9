"""What selection did to each example: the `scores` event and `examples.npz`. Reads the score table only."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sbpipe.files import atomic_file
from sbpipe.records import Classes, Floats, Ids
from sbpipe.runs.names.files import EXAMPLES
from sbpipe.trainer.stream.scores import ScoreTable

SHEET = 24
"""Examples shown in a contact sheet."""
MOST_TIMES = 100
"""Examples kept more often than this are counted together."""

Show = Callable[[Ids], tuple[NDArray[np.uint8] | None, NDArray[np.int64], NDArray[np.int64]]]
"""From ids to thumbnails (n, height, width, channels), targets and predictions; targets of -1 are no classes.
"""


class Census:
    """Counts per class and per example, from the table and the examples' classes (None = not known)."""

    def __init__(self, table: ScoreTable, classes: Classes | None, num_classes: int) -> None:
        self._table = table
        self._classes = classes
        self.num_classes = num_classes
        self.count_from_here()

    def count_from_here(self) -> None:
        """Start counting: what the table holds now is already reported."""
        if self._table.owner is not None:
            return  # a row's counts restart with its next example: no counts over time
        self._considered_before, self._kept_before = (
            self._table.times_considered.copy(),
            self._table.times_kept.copy(),
        )

    @property
    def knows_classes(self) -> bool:
        """Whether the data set tells the class of each example before it is loaded."""
        return self._classes is not None

    def counts_by(self, targets: Any) -> bool:
        """Whether classes are counted by these targets: only where no classes are known and targets may be
        some.
        """
        return self._classes is None and isinstance(targets, torch.Tensor) and targets.ndim == 1

    def class_counts(self, example_ids: Ids, targets: torch.Tensor) -> list[int]:
        """The number of these examples in each class; by their targets where no classes are known."""
        if self._classes is not None:
            classes = self._classes[example_ids]
        elif targets.ndim == 1 and not targets.is_floating_point() and len(targets) == len(example_ids):
            classes = targets.numpy()
        else:
            return []
        # Whole numbers may be something else than classes, and -100 is a target that a loss leaves out.
        if not len(classes) or classes.min() < 0 or classes.max() >= self.num_classes:
            return []
        counts: list[int] = np.bincount(classes, minlength=self.num_classes).tolist()
        return counts

    def take(self) -> dict[str, Any]:
        """The fields of a `scores` event; counts by class are since the last one."""
        table = self._table
        kept, recent = table.times_kept.copy(), table.recent
        # Read after `kept`: selections arrive meanwhile, and kept must never exceed considered.
        considered = table.times_considered.copy()
        fields: dict[str, Any] = {
            "quantiles": np.percentile(recent, np.arange(101)).round(6).tolist() if len(recent) else [],
            "class_considered": [],
            "class_kept": [],
            "times_kept": np.bincount(np.minimum(kept[considered > 0], MOST_TIMES)).tolist(),
        }
        if table.owner is None:
            fields["class_considered"] = self._by_class(considered - self._considered_before)
            fields["class_kept"] = self._by_class(kept - self._kept_before)
            self._considered_before, self._kept_before = considered, kept
        return fields

    def _by_class(self, counts: NDArray[np.int32]) -> list[int]:
        if self._classes is None:
            return []
        return [
            int(count) for count in np.bincount(self._classes, weights=counts, minlength=self.num_classes)
        ]

    def write(self, folder: Path, show: Show) -> None:
        """Write what is known of every example, with thumbnails of the extreme ones, whole or not at all.

        Of a data set larger than the table, only the examples that it still holds, with their ids.
        """
        table = self._table
        used = slice(None) if table.owner is None else table.owner >= 0
        considered, kept = table.times_considered[used], table.times_kept[used]
        scores = np.where(table.stamp[used] > 0, table.scores[used], np.float32(np.nan))
        arrays: dict[str, NDArray[Any]] = {
            "score": scores,
            "times_considered": considered,
            "times_kept": kept,
        }
        if table.owner is not None:
            arrays["example_ids"] = table.owner[used]
        for name, places in extremes(scores, considered, kept).items():
            ids = arrays["example_ids"][places] if table.owner is not None else places
            images, targets, predictions = show(ids)
            arrays |= {f"{name}_ids": ids, f"{name}_targets": targets, f"{name}_predictions": predictions}
            arrays |= {f"{name}_scores": scores[places], f"{name}_kept": kept[places]}
            arrays |= {f"{name}_images": images} if images is not None else {}
        with atomic_file(folder / EXAMPLES) as file:
            np.savez_compressed(file, allow_pickle=False, **arrays)


def extremes(scores: Floats, considered: NDArray[np.int32], kept: NDArray[np.int32]) -> dict[str, Ids]:
    """The places of the examples with the lowest and highest scores, and of those never kept."""
    scored = np.flatnonzero(np.isfinite(scores))
    by_score = scored[np.argsort(scores[scored], kind="stable")]
    seen = np.flatnonzero(considered > 0)
    never = seen[kept[seen] == 0]
    by_passed_over = never[np.argsort(-considered[never], kind="stable")]
    return {
        "easiest": by_score[:SHEET],
        "hardest": by_score[::-1][:SHEET],
        "never_kept": by_passed_over[:SHEET],
    }
