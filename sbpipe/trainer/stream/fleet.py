"""How much to lease to each of many selectors: pure arithmetic, no state.

A single selector is leased what the next train batch needs. Divided among many, that would be a handful of
candidates for each: passes that are mostly overhead, and sets too small to choose from. So with `MANY`
selectors or more a lease is a share of several train batches, in proportion to what each selector scores per
second, so that all take about the same time. It has at least `LEAST` candidates, and at most what one
selector alone would get. All its candidates are considered, so no score is wasted.

The cost is staleness: steps go by while a lease is scored. With n selectors that are all needed, n leases are
out at a time, which are n * lease * keep / batch_size train batches. Only as many batches are leased ahead as
the needed selectors have out, and never more than `MOST_AHEAD`. With weights up to eight steps old the
default policy still gains on every data set that was measured, on some less than with those of the step
before (k 1.2 instead of 1.4 on CIFAR-10, docs/results.md). So at most

    MOST_AHEAD * batch_size / (keep * LEAST)

selectors are of use at a time; the others wait. If selectors are faster than the loop, less is leased ahead.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from sbpipe.config import Config
from sbpipe.trainer.stream.credit import PIECE

MANY = 2
"""From this many selectors on, leases are shares of several batches."""
LEAST = 64
"""The fewest candidates in a lease, where a train batch needs as many: the cost per candidate falls no
further above it, and a set policy keeps some sixteen of them.
"""
MOST_AHEAD = 8.0
"""The most train batches that may be out at a time because there are many selectors."""
MARGIN = 1.0
"""Train batches that should be on hand in addition: leases do not end just when a batch is needed."""
HEADROOM = 1.1
"""Selectors count as needed until together they are this much faster than the loop."""


@dataclass(frozen=True)
class Plan:
    """The candidates in a lease of each selector, and the train batches that the needed ones have out."""

    leases: Mapping[str, int]
    ahead: float


def plan(
    *,
    batch_size: int,
    keep: float,
    rates: Mapping[str, float | None],
    step_s: float | None,
    is_set: bool,
    least: int = LEAST,
    most_ahead: float = MOST_AHEAD,
) -> Plan:
    """Share out leases by candidates per second of each selector (None = not known yet).

    `is_set`: a policy that chooses a set from each lease gains from long leases; others only from fresh
    scores.
    """
    demand = batch_size / keep
    known = [rate for rate in rates.values() if rate]
    usual = sum(known) / len(known) if known else 1.0
    speeds = {name: rate or usual for name, rate in rates.items()}
    total, whole = sum(speeds.values()), max(1.0, PIECE * demand)
    # Each may have two leases out, so half of the most that may be out is shared out.
    to_share = most_ahead / 2 * demand if is_set else least * len(speeds)
    shared = {name: to_share * speed / total for name, speed in speeds.items()}
    floor = min(least, whole)
    # Before any speed is known, leases are short: all selectors may be slow.
    longest = whole if known else floor
    leases = {name: round(min(longest, max(floor, share))) for name, share in shared.items()}
    if not known or not step_s:
        return Plan(leases, 0.0)
    out = scored = 0.0
    for name in sorted(speeds, key=lambda name: -speeds[name]):
        out += leases[name]
        scored += speeds[name] * step_s
        if scored >= HEADROOM * demand:
            break
    return Plan(leases, min(most_ahead, out / demand))


def least_of(config: Config) -> int:
    """The fewest candidates in a lease: a whole pass, where `selector.batch_size` gives its size."""
    given = config.selector.batch_size
    return given if isinstance(given, int) and given else LEAST


def most_useful(*, batch_size: int, keep: float, least: int = LEAST, most_ahead: float = MOST_AHEAD) -> int:
    """How many selectors can be of use at a time."""
    demand = batch_size / keep
    return max(1, int(most_ahead * demand / min(least, max(1.0, PIECE * demand))))
