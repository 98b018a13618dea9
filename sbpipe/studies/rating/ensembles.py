"""Decides which examples each model is trained on, and which ones it rates. Pure."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sbpipe import randomness
from sbpipe.data import Order
from sbpipe.records import Floats, Ids

_SEEDS = 2**31


@dataclass(frozen=True)
class Rater:
    """One model: its seed, the examples it is trained on, and those it rates."""

    name: str
    seed: int
    train_ids: Ids
    rated_ids: Ids


def ensemble(num_models: int, num_examples: int, seed: int) -> list[Rater]:
    """Models that are trained on all examples and rate all; each has its own seed."""
    everything = np.arange(num_examples)
    return [
        Rater(f"model-{number}", _seed(seed, "ensemble", number), everything, everything)
        for number in range(num_models)
    ]


def crossed(num_models: int, num_examples: int, seed: int) -> list[Rater]:
    """Pairs of models, each trained on one half and rating the other: no model rates examples it has seen."""
    shuffled = Order(num_examples, _seed(seed, "halves", 0)).ids(0, 0, num_examples)
    one, other = np.sort(shuffled[: num_examples // 2]), np.sort(shuffled[num_examples // 2 :])
    raters = []
    for number in range(num_models):
        own = _seed(seed, "crossed", number)
        raters += [
            Rater(f"model-{number}-a", own, one, other),
            Rater(f"model-{number}-b", own + 1, other, one),
        ]
    return raters


PLANS: dict[str, Callable[[int, int, int], list[Rater]]] = {"el2n": ensemble, "irreducible": crossed}
"""The models for each kind of scores."""


def joined(raters: list[Rater], ratings: list[Floats], num_examples: int) -> Floats:
    """The mean rating of each example over the models that rated it."""
    total, times = np.zeros(num_examples), np.zeros(num_examples, np.int64)
    for rater, rating in zip(raters, ratings, strict=True):
        total[rater.rated_ids] += rating
        times[rater.rated_ids] += 1
    return (total / times).astype(np.float32)


def _seed(seed: int, purpose: str, number: int) -> int:
    """A model's seed. Not seed + number: ensembles of neighbouring seeds would share models."""
    return randomness.key(seed, f"rating.{purpose}", number) % _SEEDS
