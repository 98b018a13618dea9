"""The score table: what is known of every example, and the last scores in order of arrival.

It supplies the history of a new selector, the fallback, and the pictures of easy and hard examples. Pure.

A data set with more examples than the table has rows shares them: example i has row i modulo the number of
rows, until another example of that row is considered. So the table holds about as many of the last candidates
as it has rows, and when an example comes again an epoch later, nothing is known of it.

Many selectors answer thousands of times a second, with a few dozen candidates each, and NumPy needs as long
for these as for many. So answers are queued, and written together when `settle` is called or the table is
read.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sbpipe.config import Config
from sbpipe.errors import ConfigError
from sbpipe.records import Classes, Floats, Ids, Selection
from sbpipe.selection.draws import Mask

_COLUMNS = {
    "scores": np.float32,
    "stamp": np.int32,
    "keep_probability": np.float32,
    "times_considered": np.int32,
    "times_kept": np.int32,
}


class _Told(NamedTuple):
    """The considered examples of one or several selections; `kept` are positions among them."""

    example_ids: Ids
    scores: Floats
    keep_probability: Floats
    stamp: NDArray[np.int32]
    kept: NDArray[np.integer]


class ScoreTable:
    """20 bytes per row, 28 where examples share rows; pages that were never written cost nothing.

    It records losses. The irreducible loss of an example, where known, is subtracted before a policy judges.
    """

    def __init__(
        self,
        num_examples: int,
        history: int,
        *,
        irreducible: Floats | None = None,
        classes: Classes | None = None,
        most_rows: int | None = None,
    ) -> None:
        self._irreducible = irreducible
        self.classes = classes
        rows = num_examples if most_rows is None else min(num_examples, most_rows)
        is_shared = rows < num_examples
        # Row by row in memory: candidates are scattered over the table, and each then touches one page, not
        # six.
        table = np.zeros(rows, [*_COLUMNS.items(), *([("owner", np.int64)] if is_shared else [])])
        self._rows, self._no_row = table, np.zeros((), table.dtype)
        self.owner: Ids | None = table["owner"] if is_shared else None
        """The example in each row, -1 = none yet; None = example i always has row i."""
        if self.owner is not None:
            self.owner[:] = -1
        self.scores: Floats = table["scores"]
        self.stamp: NDArray[np.int32] = table["stamp"]  # version + 1; 0 = never scored
        self.keep_probability: Floats = table["keep_probability"]
        self.times_considered: NDArray[np.int32] = table["times_considered"]
        self.times_kept: NDArray[np.int32] = table["times_kept"]
        self._capacity = history
        self.recent: Floats = np.empty(0, np.float32)
        self.recent_ids: Ids = np.empty(0, np.int64)
        self._told: list[_Told] = []

    def record(self, example_ids: Ids, selection: Selection) -> None:
        """Queue the scores of a selection; a score that is not finite counts as none.

        Readers of the columns call `settle` first.
        """
        stamp = np.full(len(example_ids), selection.version + 1, np.int32)
        told = _Told(example_ids, selection.scores, selection.keep_probability, stamp, selection.kept)
        self._told.append(told)

    def settle(self) -> None:
        """Write what was recorded since the last call."""
        told, self._told = self._told, []
        if len(told) > 1:
            all_told = _together(told)
            rows = all_told.example_ids if self.owner is None else all_told.example_ids % len(self.owner)
            # A row that occurs twice must be written in order of arrival.
            if _are_distinct(rows):
                told = [all_told]
        for one in told:
            self._take_in(one)

    def _take_in(self, told: _Told) -> None:
        example_ids, scores, chances, stamp, kept = told
        finite = np.isfinite(scores)
        is_scored: Mask | slice = slice(None) if np.logical_and.reduce(finite) else finite
        if self.owner is not None:
            rows = self._claimed(example_ids, self.owner)
            owns_row, kept_rows = rows >= 0, rows[kept]
            has_row: Mask | slice = slice(None)
            of_rows = is_scored
            if not np.logical_and.reduce(
                owns_row
            ):  # two of these candidates share a row: the later one gets it
                has_row, of_rows, kept_rows = owns_row, finite & owns_row, kept_rows[kept_rows >= 0]
            self._write(rows[has_row], kept_rows, chances[has_row])
            self._score(rows[of_rows], scores[of_rows], stamp[of_rows])
        else:
            # Nearly every selection of a data set that fits the table: nothing to leave out.
            self._write(example_ids, example_ids[kept], chances)
            self._score(example_ids[is_scored], scores[is_scored], stamp[is_scored])
        # In order of arrival, as in a history: a new selector continues from exactly this.
        self.recent = np.concatenate([self.recent, scores[is_scored]])[-self._capacity :]
        self.recent_ids = np.concatenate([self.recent_ids, example_ids[is_scored]])[-self._capacity :]

    def _write(self, rows: Ids, kept_rows: Ids, chances: Floats) -> None:
        self.keep_probability[rows] = chances
        self.times_considered[rows] += 1
        self.times_kept[kept_rows] += 1

    def _score(self, rows: Ids, scores: Floats, stamp: NDArray[np.int32]) -> None:
        self.scores[rows] = scores
        self.stamp[rows] = stamp

    def _claimed(self, example_ids: Ids, owner: Ids) -> Ids:
        """Assign rows to these examples; -1 where a later one of them takes the row."""
        rows = example_ids % len(owner)
        self._rows[rows[owner[rows] != example_ids]] = self._no_row
        owner[rows] = example_ids
        return np.where(owner[rows] == example_ids, rows, -1)

    def judged(self, example_ids: Ids, scores: Floats) -> Floats:
        """The scores as a policy judges them: without the irreducible loss."""
        return scores if self._irreducible is None else scores - self._irreducible[example_ids]

    @property
    def history(self) -> tuple[Floats, NDArray[np.int32] | None]:
        """The last scores and, where the policy needs them, their classes: for a new selector."""
        self.settle()
        classes = None if self.classes is None else self.classes[self.recent_ids].astype(np.int32)
        return self.judged(self.recent_ids, self.recent), classes

    def lookup(self, example_ids: Ids) -> tuple[Floats, Ids]:
        """Last scores (NaN = never scored, or forgotten) and their versions."""
        self.settle()
        rows = example_ids if self.owner is None else example_ids % len(self.owner)
        stamp = self.stamp[rows]
        if self.owner is not None:
            stamp = np.where(self.owner[rows] == example_ids, stamp, np.int32(0))
        return np.where(stamp > 0, self.scores[rows], np.float32(np.nan)), stamp.astype(np.int64) - 1

    def state(self) -> dict[str, NDArray[np.generic]]:
        """For the checkpoint."""
        self.settle()
        state: dict[str, NDArray[np.generic]] = {"recent": self.recent, "recent_ids": self.recent_ids}
        if self.owner is None:
            return state | {name: getattr(self, name).copy() for name in _COLUMNS}
        used = self.owner >= 0
        return state | {name: getattr(self, name)[used] for name in ("owner", *_COLUMNS)}

    def restore(self, state: dict[str, NDArray[np.generic]]) -> None:
        """Go on from a checkpoint."""
        self._told.clear()
        if self.owner is None:
            for name in _COLUMNS:
                getattr(self, name)[:] = state[name]
        else:
            rows = state["owner"].astype(np.int64) % len(self.owner)
            for name in ("owner", *_COLUMNS):
                getattr(self, name)[rows] = state[name]
        self.recent = state["recent"].astype(np.float32)
        self.recent_ids = state["recent_ids"].astype(np.int64)


def _together(told: Sequence[_Told]) -> _Told:
    """Several selections, concatenated."""
    example_ids, scores, chances, stamp, kept = map(np.concatenate, zip(*told, strict=True))
    ends = np.cumsum([len(one.example_ids) for one in told])
    kept += np.repeat([0, *ends[:-1]], [len(one.kept) for one in told])
    return _Told(example_ids, scores, chances, stamp, kept)


def _are_distinct(rows: Ids) -> bool:
    ordered = np.sort(rows)
    return bool((ordered[1:] != ordered[:-1]).all())


def refuse_forgetting(config: Config, num_examples: int) -> None:
    """Refuse settings that need the last score or loss of every example, where the table is too small for
    all.
    """
    own = config.selection
    if num_examples <= own.table:
        return
    needs = {
        "selection.reuse_epochs": own.reuse_epochs > 1 and own.reuse_epochs,
        "selection.policy": own.traits.needs_trained_losses and own.policy,
    }
    for key, given in needs.items():
        if given:
            reason = (
                f"it goes by what is remembered of each of {num_examples} examples, and the score table has "
                f"{own.table} rows"
            )
            way_out = (
                f"Set selection.table = {num_examples}, which takes 20 bytes of memory each, or leave it"
            )
            raise ConfigError(key, given, reason, way_out)
