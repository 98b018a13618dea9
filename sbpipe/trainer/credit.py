"""How much to lease, and when: pure arithmetic, no state.

Lag is the enemy, so a pipelined trainer leases just enough that the next train batch is whole when the current one is done. Measured
in kept examples: `target` is what should be on its way, (depth - 1) batches and a margin for the luck of the draw; `limit`, depth
batches, is what may never be exceeded. Whatever is granted while step s trains is therefore trained by step s + depth, and was
scored with version s - (interval - 1) at the oldest: staleness <= depth + interval - 1.

Under a logical clock, batch b is scored with version `clock_version(b)`, exactly.
"""

import math


def margin(batch_size: int, keep_rate: float) -> int:
    """Kept examples that a lease may fall short of its expectation by, twice the deviation of the binomial draw."""
    return math.ceil(2.0 * math.sqrt(batch_size * max(0.0, 1.0 - keep_rate)))


def kept_to_lease(*, batch_size: int, depth: int, on_hand: int, expected: float, is_waiting: bool, keep_rate: float) -> int:
    """Kept examples to lease for now: 0, or about a batch; less only to complete the batch that is next.

    `on_hand` are kept and not yet in training, `expected` are on their way from leases that are out.
    """
    batches_ahead = max(depth - 1, 1 if is_waiting else 0)
    target = min(batches_ahead * batch_size + margin(batch_size, keep_rate), depth * batch_size)
    short = target - on_hand - expected
    next_is_short = batches_ahead > 0 and on_hand + expected < batch_size
    return math.ceil(short) if short > 0 and (next_is_short or short >= batch_size / 2) else 0


def candidates_for(kept: int, keep_rate: float) -> int:
    """Candidates whose expected yield is `kept`."""
    return max(1, math.ceil(kept / max(keep_rate, 1e-3)))


def clock_version(batch: int, *, lag: int, interval: int) -> int:
    """The version that scores train batch number `batch` under the logical clock."""
    return max(0, batch - lag) // interval * interval
