"""Pruning: a data set without the examples that a score file ranks lowest (or highest).

The remaining examples get new ids from 0, which all other code uses. Pixels, transforms and labels are still
found by the ids in the whole data set, so an example looks the same. The fingerprint identifies the remaining
examples: both roles agree on them, or refuse each other. It must not know what the scores are.
"""

import hashlib
import math

import numpy as np

from sbpipe.config import DataConfig
from sbpipe.data.content import data_error
from sbpipe.data.score_file import check_scores, read_scores
from sbpipe.records import Floats, Ids


def remaining(scores: Floats, share: float, drop: str) -> Ids:
    """The sorted ids without the lowest (or highest) `share`; of equal scores the lower id is dropped."""
    num_dropped = len(scores) - num_remaining(len(scores), share)
    order = np.argsort(scores if drop == "low" else -scores, kind="stable")
    return np.sort(order[num_dropped:]).astype(np.int64)


def num_remaining(num_examples: int, share: float) -> int:
    """How many examples are left without this share of them."""
    return num_examples - math.floor(share * num_examples + 0.5)


def pruned_ids(data: DataConfig, *, fingerprint: str, num_examples: int, batch_size: int) -> Ids | None:
    """The ids that pruning by the settings leaves; None = all."""
    if not data.prune or not data.prune_share:
        return None
    file = read_scores(data.prune, key="data.prune")
    check_scores(file, data.prune, key="data.prune", fingerprint=fingerprint, num_examples=num_examples)
    left = remaining(file.scores, data.prune_share, data.prune_from)
    if len(left) < max(1, batch_size):
        reason = (
            f"leaves {len(left)} of {num_examples} training examples, which do not fill a batch of "
            f"{batch_size}"
        )
        raise data_error(
            "data.prune_share", data.prune_share, reason, "Drop fewer, or set train.batch_size lower"
        )
    return left


def pruned_fingerprint(fingerprint: str, left: Ids | None) -> str:
    """The data set's fingerprint, followed by one of the remaining ids if examples were dropped."""
    return (
        fingerprint
        if left is None
        else f"{fingerprint}-{hashlib.blake2b(left.astype('<i8').tobytes(), digest_size=4).hexdigest()}"
    )
