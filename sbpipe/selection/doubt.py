"""Passing over candidates whose labels are probably wrong. Pure; knows no model, nor who doubts and why.

A hard example is learnt in time, a wrong label is not: a loss that stayed above that of a guess from one
epoch to the next is the sign of it. Who is doubted travels as one bit for each candidate.
"""

import numpy as np
from numpy.typing import NDArray

from sbpipe.records import Floats, Lease
from sbpipe.selection.draws import Mask


def packed(is_doubted: Mask) -> NDArray[np.uint8] | None:
    """As it travels; None where nobody is doubted."""
    return np.packbits(is_doubted) if is_doubted.any() else None


def passed_over(lease: Lease, scores: Floats) -> Mask | None:
    """Which of a lease's first candidates are passed over, given their scores; None = nobody is doubted.

    Only who is doubted and has a high score now too: what was learnt since is not passed over.
    """
    if lease.doubted is None:
        return None
    is_doubted = np.unpackbits(lease.doubted, count=len(scores)).astype(bool)
    return is_doubted & (scores > np.float32(lease.doubt_above))
