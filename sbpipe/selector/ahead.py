"""How much of a lease to queue on an accelerator before any of it is read. Pure; knows no model, no device.

A lease that is chosen from in turn ends when enough are kept, which nobody knows before the scores are read.
To read twice would leave the device without work in between. So as many candidates are queued as have nearly
always yielded enough of late. What is left over was not considered, and goes back; where they yield too
little all the same, the lease ends with them, and the rest of its range goes back too. What is kept, and in
which order, does not depend on it.
"""

import math
import statistics
from collections import deque

from sbpipe.records import Lease

_REMEMBERED = 16
"""Leases whose yield is looked back at: it moves with the weights."""
_MARGIN = 1.5
"""Standard deviations of the yield. One lease in fifteen or so falls short; more passes in vain cost more."""
_FIRST, _LEAST = 0.7, 0.25
"""Of the yield that a lease asks for: what is reckoned with before any is known, and at the least."""


class Ahead:
    """Reckons with the yield of the last leases."""

    def __init__(self) -> None:
        self._yields: deque[float] = deque(maxlen=_REMEMBERED)

    def num_candidates(self, lease: Lease, batch_size: int) -> int:
        """Candidates to queue: whole passes, unless the lease ends before."""
        rate = 1.0 if lease.keep_all else max(1e-3, lease.keep * self._lowest)
        return min(lease.num_candidates, max(1, math.ceil(lease.enough / rate / batch_size)) * batch_size)

    def note(self, lease: Lease, considered: int, kept: int) -> None:
        """What a lease yielded."""
        if not lease.keep_all:
            self._yields.append(kept / (considered * lease.keep))

    @property
    def _lowest(self) -> float:
        """The yield of the next lease is not below this, relative to what it asks for."""
        if len(self._yields) < 2:
            return _FIRST
        mean, spread = statistics.fmean(self._yields), statistics.pstdev(self._yields)
        return max(_LEAST, mean - _MARGIN * spread)
