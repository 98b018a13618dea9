"""How much to lease, and when: pure arithmetic, no state.

Lag is the enemy, so a pipelined trainer leases just enough that the next train batch is whole when the
current one is done. Counted in kept examples: (depth - 1) batches should be on hand or on their way, and
never more than depth batches. Whatever is granted while step s trains is therefore trained by step s + depth,
and was scored with version s - (interval - 1) at the oldest: with one selector, staleness <= depth + interval
- 1. Of several, a slow one may answer later than that; `sync.max_staleness` refuses what is too old.

The yield of a lease is what is fixed, not its length. Scores move with the weights, and early in a run one
lease keeps a tenth of its candidates and the next one a half; so a lease's range is generous, its selector
stops when it has kept enough, and what it did not consider goes back to the front of the line.

Under a logical clock, batch b is scored with version `clock_version(b)`, exactly.
"""

import math

GENEROSITY = 3.0
"""How many times the expected number of candidates a lease offers."""

LONGEST = 2**20
"""Candidates in a lease at the most: what one message may carry scores of."""


def kept_to_lease(*, batch_size: int, depth: int, on_hand: int, expected: float, is_waiting: bool) -> int:
    """Kept examples to lease for now: 0, or about a batch; less only to complete the batch that is next.

    `on_hand` are kept and not yet in training, `expected` are on their way from leases that are out.
    """
    batches_ahead = max(depth - 1, 1 if is_waiting else 0)
    short = batches_ahead * batch_size - on_hand - expected
    next_is_short = batches_ahead > 0 and on_hand + expected < batch_size
    return math.ceil(short) if short > 0 and (next_is_short or short >= batch_size / 2) else 0


def candidates_for(kept: int, keep_rate: float, chunk: int) -> int:
    """The length of a lease that shall yield `kept`, in whole scoring batches."""
    candidates = GENEROSITY * kept / max(keep_rate, 1e-3) if keep_rate < 1.0 else kept
    return min(LONGEST, max(1, math.ceil(candidates / chunk)) * chunk)


def set_for(kept: int, keep_rate: float) -> int:
    """The length of a lease that is chosen from as a whole, and yields exactly `kept`."""
    return min(LONGEST, max(kept, round(kept / max(keep_rate, 1e-3))))


def clock_version(batch: int, *, lag: int, interval: int) -> int:
    """The version that scores train batch number `batch` under the logical clock."""
    return max(0, batch - lag) // interval * interval
