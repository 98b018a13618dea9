"""Every example is kept at least once in `every` epochs. A pure function of seed, epoch and example."""

import numpy as np
from numpy.typing import NDArray

from sbpipe import randomness
from sbpipe.records import Ids


def is_due(seed: int, epoch: int, example_ids: Ids, every: int) -> NDArray[np.bool_]:
    """Which examples have their turn in this epoch: each has one in `every` epochs; 0 = none ever has."""
    if not every:
        return np.zeros(len(example_ids), bool)
    # Turns are drawn, not counted: any process can compute them without knowing what was kept before.
    turn = (randomness.uniform(example_ids, randomness.key(seed, "floor")) * every).astype(np.int64)
    is_now: NDArray[np.bool_] = turn == epoch % every
    return is_now
