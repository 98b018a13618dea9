"""How much to lease to whom, of many selectors: pure arithmetic, no state.

One selector is leased what the next train batch needs. Shared out among many, that would be a handful of
candidates for each: passes that are mostly overhead, and sets too small to choose from. So from `MANY` on a
lease is a share of several train batches, in proportion to what each selector scores per second, so that all
take about the same time; never less than `LEAST` candidates, and never more than one selector alone would be
given. All its candidates are considered, so nothing is scored in vain.

What that costs is staleness. While a lease is scored, steps go by: with n selectors that are all needed,
n leases are out at a time, which are n * lease * keep / batch_size train batches. Only as many batches are
leased ahead as the selectors that are needed have out, and never more than `MOST_AHEAD`: with weights of up
to eight steps before, the default policy still gains on every data set that was measured, on some less than
with those of the step before (k 1.2 instead of 1.4 on CIFAR-10, docs/results.md). So at most

    MOST_AHEAD * batch_size / (keep * LEAST)

selectors are of use at a time; the others wait. Selectors that are faster than the loop leave less ahead.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from sbpipe.config import Config
from sbpipe.trainer.stream.credit import PIECE

MANY = 2
"""Selectors from which on leases are shares of several batches."""
LEAST = 64
"""Candidates in a lease at least, where a train batch needs as many: a pass costs no more per candidate from
there on, and a set policy keeps some sixteen of them.
"""
MOST_AHEAD = 8.0
"""Train batches that may be out at a time on account of the number of selectors."""
MARGIN = 1.0
"""Train batches that should be on hand beside these: leases do not end when a batch is needed."""
HEADROOM = 1.1
"""How much faster than the loop the selectors are that count as needed."""


@dataclass(frozen=True)
class Plan:
    """Candidates in a lease of each selector, and the train batches that those needed have out."""

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
    """Share out leases among selectors of these candidates per second (None = not known yet).

    `is_set`: a policy that chooses a set of each lease gains by long ones; others only by fresh scores.
    """
    demand = batch_size / keep
    known = [rate for rate in rates.values() if rate]
    usual = sum(known) / len(known) if known else 1.0
    speeds = {name: rate or usual for name, rate in rates.items()}
    total, whole = sum(speeds.values()), max(1.0, PIECE * demand)
    # Two leases of each may be out: half of what may be out in all is shared out.
    to_share = most_ahead / 2 * demand if is_set else least * len(speeds)
    shared = {name: to_share * speed / total for name, speed in speeds.items()}
    floor = min(least, whole)
    # Before anybody is measured, no more than can be taken in vain: all of them may be slow.
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
    """Candidates in a lease at least: a whole pass, where `selector.batch_size` says how long that is."""
    given = config.selector.batch_size
    return given if isinstance(given, int) and given else LEAST


def most_useful(*, batch_size: int, keep: float, least: int = LEAST, most_ahead: float = MOST_AHEAD) -> int:
    """How many selectors can have a lease at a time."""
    demand = batch_size / keep
    return max(1, int(most_ahead * demand / min(least, max(1.0, PIECE * demand))))
