"""How much of a lease to queue on an accelerator before any of it is read. Pure; knows no model, no device.

A lease whose candidates are chosen in turn ends when enough are kept, which is known only after the scores
are read. Reading twice would leave the device without work in between. So as many candidates are queued as
would have yielded enough in nearly all recent leases. Those left over were not considered, and go back to the
line. If they yield too little, the lease still ends with them, and the rest of its range goes back too. What
is kept, and in which order, does not depend on it.
"""

import math
import statistics
from collections import deque

from sbpipe.records import Lease

_REMEMBERED = 16
"""Leases whose yield counts; few, because it moves with the weights."""
_MARGIN = 1.5
"""Standard deviations below the mean yield. About one lease in fifteen falls short; more wasted passes cost
more.
"""
_FIRST, _LEAST = 0.7, 0.25
"""Relative yields: the one assumed before any is known, and the lowest assumed."""


class Ahead:
    """Predicts the yield of a lease from the last ones."""

    def __init__(self) -> None:
        self._yields: deque[float] = deque(maxlen=_REMEMBERED)

    def num_candidates(self, lease: Lease, batch_size: int) -> int:
        """Candidates to queue: whole passes, unless the lease ends before."""
        rate = 1.0 if lease.keep_all else max(1e-3, lease.keep * self._lowest)
        return min(lease.num_candidates, max(1, math.ceil(lease.enough / rate / batch_size)) * batch_size)

    def note(self, lease: Lease, considered: int, kept: int) -> None:
        """Note the yield of a lease."""
        if not lease.keep_all:
            self._yields.append(kept / (considered * lease.keep))

    @property
    def _lowest(self) -> float:
        """A low estimate of the next lease's yield, relative to its keep rate."""
        if len(self._yields) < 2:
            return _FIRST
        mean, spread = statistics.fmean(self._yields), statistics.pstdev(self._yields)
        return max(_LEAST, mean - _MARGIN * spread)
