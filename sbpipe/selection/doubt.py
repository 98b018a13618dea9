"""Passing over candidates whose labels are probably wrong. Pure; knows no model, nor why a label is doubted.

A hard example is learnt in time, a wrong label is not: its sign is a loss that stays above that of a guess
from one epoch to the next. The doubted candidates of a lease are sent as one bit each.
"""

import numpy as np
from numpy.typing import NDArray

from sbpipe.records import Floats, Lease
from sbpipe.selection.draws import Mask


def packed(is_doubted: Mask) -> NDArray[np.uint8] | None:
    """The bits to send; None where no candidate is doubted."""
    return np.packbits(is_doubted) if is_doubted.any() else None


def passed_over(lease: Lease, scores: Floats) -> Mask | None:
    """Which of a lease's first candidates are passed over, given their scores; None = no candidate is
    doubted.

    Only doubted candidates whose present score is high too: what was learnt meanwhile is not passed over.
    """
    if lease.doubted is None:
        return None
    is_doubted = np.unpackbits(lease.doubted, count=len(scores)).astype(bool)
    return is_doubted & (scores > np.float32(lease.doubt_above))
