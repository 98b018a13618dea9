"""How much to lease, and when: pure arithmetic, no state.

Staleness should be low, so a pipelined trainer leases just enough that the next train batch is whole when the
current one is done. Counted in kept examples: (depth - 1) batches should be on hand or on their way, and
never more than depth batches. What is granted while step s trains is therefore trained by step s + depth, and
was scored with version s - (interval - 1) at the oldest: with one selector, staleness <= depth + interval -
1. Of several selectors a slow one may answer later; `sync.max_staleness` refuses what is too old.

A loop that does not wait for selection (`selection.late = "fill"`) needs the next batch whole before the
current one is done, because the batch must still be loaded. A selector that needs most of a step for a lease,
as `selection.keep = "auto"` intends, would answer a lease granted at the start of a step too late. So part of
a batch more (a whole one where loading takes long) is leased ahead, in leases of half a batch. Then at the
start of a step part of the next batch is on hand or being scored, the rest is answered in the middle of the
step, and the selector always finds its next lease waiting. No lease is longer than what its selector can
score in about one step's time, so that the answer of a slow one is not many steps old.

The yield of a lease is fixed, not its length. Scores move with the weights: early in a run one lease keeps a
tenth of its candidates and the next one half. So the range of a lease is generous, its selector stops when it
has kept enough, and what it did not consider goes back to the front of the line.

Under a logical clock, batch b is scored with version `clock_version(b)`, exactly.
"""

import math

GENEROSITY = 3.0
"""How many times the expected number of candidates a lease offers."""

PIECE = 1 / 2
"""Share of a batch in one lease where batches are selected ahead. A lease and its answer cost the trainer's
core an eighth of a millisecond at thousands per second (docs/performance.md), and more where a train step has
just used the caches; their length adds little.
"""

LONGEST = 2**20
"""The most candidates in a lease: as many as one message may carry scores for."""


def kept_to_lease(
    *,
    batch_size: int,
    depth: int,
    on_hand: int,
    expected: float,
    is_waiting: bool,
    ahead: float = 0.0,
    least: float = math.inf,
) -> int:
    """Kept examples to lease for now: 0, or about a batch; less only to complete the next batch.

    `on_hand` examples are kept and not yet in training, `expected` ones should come from leases that are out.
    For a loop that does not wait, `ahead` more batches are selected, in leases of `least` kept or more.
    """
    batches_ahead = min(depth, max(depth - 1 + ahead, 1 if is_waiting else 0))
    short = batches_ahead * batch_size - on_hand - expected
    next_is_short = batches_ahead > 0 and on_hand + expected < batch_size
    return math.ceil(short) if short > 0 and (next_is_short or short >= min(least, batch_size / 2)) else 0


def candidates_for(kept: int, keep_rate: float, chunk: int, most: float = math.inf) -> int:
    """The length of a lease that should yield `kept`, in whole scoring batches, at most about `most`."""
    candidates = min(most, GENEROSITY * kept / max(keep_rate, 1e-3) if keep_rate < 1.0 else kept)
    return min(LONGEST, max(1, math.ceil(candidates / chunk)) * chunk)


def set_for(kept: int, keep_rate: float, chunk: int, most: float = math.inf) -> int:
    """The length of a lease that is chosen from as a set: it yields exactly `kept`; at most about `most`.

    `most` never cuts it below a scoring batch: fewer candidates would not be scored any sooner.
    """
    return min(LONGEST, math.ceil(max(kept, min(kept / max(keep_rate, 1e-3), max(most, chunk)))))


def clock_version(batch: int, *, lag: int, interval: int) -> int:
    """The version that scores train batch number `batch` under the logical clock."""
    return max(0, batch - lag) // interval * interval
