"""What a policy is, and how its probabilities become a choice. Pure; sees no socket, model or device."""

from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from sbpipe import randomness
from sbpipe.config import SelectionConfig, Traits
from sbpipe.records import Classes, Floats, Ids
from sbpipe.selection.draws import Mask
from sbpipe.selection.floor import is_due


class Policy(Protocol):
    """The rule from scores to keep probabilities."""

    traits: Traits
    """What the rest of the program must know about it; on the class, so it is known before one is built."""

    def __init__(self, config: SelectionConfig) -> None: ...

    def keep_probability(
        self, scores: Floats, classes: Classes | None = None, *, keep: float, strength: float = 1.0
    ) -> Floats:
        """The chance of each of the next candidates, in order, to be kept. Changes nothing.

        `classes` are given where the data set has them; `keep`, the target share, and `strength` are the
        lease's.
        """
        ...

    def draw(self, probability: Floats, uniform: NDArray[np.float64]) -> Mask:
        """Which candidates are kept, each with its own chance, given the coins of a pass."""
        ...

    def consider(self, scores: Floats, classes: Classes | None = None) -> None:
        """Remember that these candidates were considered."""
        ...

    def state(self) -> Floats:
        """What a new selector needs to go on from here."""
        ...

    def restore(self, state: Floats, classes: Classes | None = None) -> None:
        """Go on from another policy's state."""
        ...


@runtime_checkable
class SetPolicy(Policy, Protocol):
    """A policy that chooses among all candidates of a lease at once (`traits.chooses_sets`)."""

    def choose_set(
        self,
        scores: Floats,
        residuals: Floats,
        count: int,
        uniform: NDArray[np.float64],
        *,
        strength: float,
        due: Mask,
        passed_over: Mask | None = None,
    ) -> Mask:
        """Which candidates are kept: up to `count`, by one uniform number for each draw, those that are `due`
        first.

        A candidate that is `passed_over` is kept only if the others are not enough.
        """
        ...


def set_coins(seed: int, epoch: int, start: int, count: int) -> NDArray[np.float64]:
    """The uniform numbers for a lease's draws: they depend on its place alone, not on the selector."""
    return randomness.uniform(np.arange(count), randomness.key(seed, "set", epoch, start))


def coins(seed: int, epoch: int, example_ids: Ids) -> NDArray[np.float64]:
    """One uniform number per candidate: the same coin for every selector and at any time."""
    return randomness.uniform(example_ids, randomness.key(seed, "coin", epoch))


def choose(is_kept: Mask, most: int) -> tuple[int, NDArray[np.int32]]:
    """How many candidates are considered, and the positions of the kept ones, at most `most` of them."""
    kept = np.flatnonzero(is_kept).astype(np.int32)
    # Candidates after the last kept one were not considered: a later lease offers them again, to newer
    # weights.
    if len(kept) < most:
        return len(is_kept), kept
    return int(kept[most - 1]) + 1, kept[:most]


def drawn(
    policy: Policy,
    probability: Floats,
    example_ids: Ids,
    *,
    seed: int,
    epoch: int,
    floor: int,
    keep_all: bool,
) -> tuple[Floats, Mask]:
    """The chances of a pass and which candidates are kept, with turns (`floor`) and stretches without
    selection.
    """
    if keep_all:
        return np.ones(len(probability), np.float32), np.ones(len(probability), bool)
    due = is_due(seed, epoch, example_ids, floor)
    is_kept = due | policy.draw(probability, coins(seed, epoch, example_ids))
    return np.where(due, np.float32(1.0), probability), is_kept
