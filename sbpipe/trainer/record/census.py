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
        """What the table holds now was told before."""
        self._considered_before, self._kept_before = (
            self._table.times_considered.copy(),
            self._table.times_kept.copy(),
        )

    @property
    def knows_classes(self) -> bool:
        """Whether the data set tells the class of each example before it is loaded."""
        return self._classes is not None

    def counts_by(self, targets: Any) -> bool:
        """Whether classes are counted by these targets: they may be, and nothing else tells."""
        return self._classes is None and isinstance(targets, torch.Tensor) and targets.ndim == 1

    def class_counts(self, example_ids: Ids, targets: torch.Tensor) -> list[int]:
        """How many of these examples are of each class; by their targets where no classes are known."""
        if self._classes is not None:
            classes = self._classes[example_ids]
        elif targets.ndim == 1 and not targets.is_floating_point() and len(targets) == len(example_ids):
            classes = targets.numpy()
        else:
            return []
        counts: list[int] = np.bincount(classes, minlength=self.num_classes).tolist()
        return counts

    def take(self) -> dict[str, Any]:
        """The fields of a `scores` event; classes are counted since the last one."""
        table = self._table
        kept, recent = table.times_kept.copy(), table.recent
        # After `kept`: selections arrive meanwhile, and nothing may be kept that was not considered.
        considered = table.times_considered.copy()
        fields = {
            "quantiles": np.percentile(recent, np.arange(101)).round(6).tolist() if len(recent) else [],
            "class_considered": self._by_class(considered - self._considered_before),
            "class_kept": self._by_class(kept - self._kept_before),
            "times_kept": np.bincount(np.minimum(kept[considered > 0], MOST_TIMES)).tolist(),
        }
        self._considered_before, self._kept_before = considered, kept
        return fields

    def _by_class(self, counts: NDArray[np.int32]) -> list[int]:
        if self._classes is None:
            return []
        return [
            int(count) for count in np.bincount(self._classes, weights=counts, minlength=self.num_classes)
        ]

    def write(self, folder: Path, show: Show) -> None:
        """Leave what is known of every example, with thumbnails of the extreme ones, whole or not at all."""
        table = self._table
        scores, _ = table.lookup(np.arange(len(table.scores)))
        arrays: dict[str, NDArray[Any]] = {
            "score": scores,
            "times_considered": table.times_considered,
            "times_kept": table.times_kept,
        }
        for name, ids in extremes(scores, table.times_considered, table.times_kept).items():
            images, targets, predictions = show(ids)
            arrays |= {f"{name}_ids": ids, f"{name}_targets": targets, f"{name}_predictions": predictions}
            arrays |= {f"{name}_scores": scores[ids], f"{name}_kept": table.times_kept[ids]}
            arrays |= {f"{name}_images": images} if images is not None else {}
        with atomic_file(folder / EXAMPLES) as file:
            np.savez_compressed(file, allow_pickle=False, **arrays)


def extremes(scores: Floats, considered: NDArray[np.int32], kept: NDArray[np.int32]) -> dict[str, Ids]:
    """The ids of the examples with the lowest and highest scores, and those never kept."""
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
