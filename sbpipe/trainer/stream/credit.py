"""How much to lease, and when: pure arithmetic, no state.

Lag is the enemy, so a pipelined trainer leases just enough that the next train batch is whole when the
current one is done. Counted in kept examples: (depth - 1) batches should be on hand or on their way, and
never more than depth batches. Whatever is granted while step s trains is therefore trained by step s + depth,
and was scored with version s - (interval - 1) at the oldest: with one selector, staleness <= depth + interval
- 1. Of several, a slow one may answer later than that; `sync.max_staleness` refuses what is too old.

A loop that does not wait for selection (`selection.late = "fill"`) needs the next batch whole before the
current one is done, because it has yet to be loaded. A lease granted when a step begins would be answered too
late by a selector that needs most of a step for it, which is what `selection.keep = "auto"` aims at. So part
of a batch more (a whole one where loading takes long) is leased ahead, in leases of half a batch: when
a step begins, part of the next batch is on hand or being scored, the rest is answered in the middle of the
step, and the selector finds its next lease when it has answered the last one. No lease is longer than what
its selector can score in about one step's time, so that the answer of a slow one is not many steps old.

The yield of a lease is what is fixed, not its length. Scores move with the weights, and early in a run one
lease keeps a tenth of its candidates and the next one a half; so a lease's range is generous, its selector
stops when it has kept enough, and what it did not consider goes back to the front of the line.

Under a logical clock, batch b is scored with version `clock_version(b)`, exactly.
"""

import math

GENEROSITY = 3.0
"""How many times the expected number of candidates a lease offers."""

PIECE = 1 / 2
"""Share of a batch in one lease where batches are selected ahead. A lease and its answer cost the trainer's
core an eighth of a millisecond where they come by the thousand a second (docs/performance.md), and more where
a train step has just had the caches; their length adds little.
"""

LONGEST = 2**20
"""Candidates in a lease at the most: what one message may carry scores of."""


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
    """Kept examples to lease for now: 0, or about a batch; less only to complete the batch that is next.

    `on_hand` are kept and not yet in training, `expected` are on their way from leases that are out. For a
    loop that does not wait, `ahead` batches are to be selected on top, in leases of `least` kept or more.
    """
    batches_ahead = min(depth, max(depth - 1 + ahead, 1 if is_waiting else 0))
    short = batches_ahead * batch_size - on_hand - expected
    next_is_short = batches_ahead > 0 and on_hand + expected < batch_size
    return math.ceil(short) if short > 0 and (next_is_short or short >= min(least, batch_size / 2)) else 0


def candidates_for(kept: int, keep_rate: float, chunk: int, most: float = math.inf) -> int:
    """The length of a lease that shall yield `kept`, in whole scoring batches, about `most` in all."""
    candidates = min(most, GENEROSITY * kept / max(keep_rate, 1e-3) if keep_rate < 1.0 else kept)
    return min(LONGEST, max(1, math.ceil(candidates / chunk)) * chunk)


def set_for(kept: int, keep_rate: float, chunk: int, most: float = math.inf) -> int:
    """The length of a lease that is chosen from as a whole: what yields exactly `kept`, about `most` in all.

    Not below a scoring batch on account of `most`: less would be scored no sooner.
    """
    return min(LONGEST, math.ceil(max(kept, min(kept / max(keep_rate, 1e-3), max(most, chunk)))))


def clock_version(batch: int, *, lag: int, interval: int) -> int:
    """The version that scores train batch number `batch` under the logical clock."""
    return max(0, batch - lag) // interval * interval
