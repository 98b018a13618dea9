"""What many selectors and the line between hosts do to a run: numbers in, staleness and fills out. Pure.

In steps of the loop: d a message's way (one way), X the bytes of a snapshot over the line, i the sync
interval, W the scoring of one lease, S the selectors' work for one step, N the train batches that the trainer
keeps leased or on hand (its credit):

    x = min(1, 1 / S, N / (2 d + W + 1/2))   share that is selected; the last only where 2 d + W > N - 1/4
    G = N / x                                from a grant to the training of what it brought (Little's law)
    q = u^8 (G - 2 d - W - 1/2)              of that, behind another lease; u = x S: how busy a selector is
    staleness = G + age of the weights when scoring begins, which is
        mean of ceil(2 d + X - q') for q' in (0, 2 q), + (i - 1) / 2    if each arrives before the next
        3/2 (2 d + X) - q + i / 2                                       if 2 d + X > i: one by one

The half step: an answer waits for the batch that is next. Weights are told (d), asked for and sent (2 d + X);
the lease that they score takes d too. Leases go out when a step begins, so a version that is late is late by
whole steps: the ceiling. A line that stops for Z every Y is covered by what is on hand, R = G - 2 d - W - q;
after that batches are filled:

    filled = 1 - x (1 - max(0, Z - R) / Y)
"""

import math
from dataclasses import dataclass

AWAIT = 0.5
"""Steps that an answer waits, on average, until the next batch is due."""
EARLY = 0.25
"""Steps by which answers should be there before a batch is needed: it has yet to be loaded."""
PILE = 8
"""How steeply leases pile up before selectors that are nearly always busy."""


@dataclass(frozen=True)
class Line:
    """What lies between the trainer and its selectors."""

    latency_ms: float = 0.0
    """One way."""
    transfer_ms: float = 0.0
    """The bytes of a snapshot, latency apart; 0 in shared memory."""
    stall_ms: float = 0.0
    stall_every_ms: float = math.inf

    @property
    def pull_ms(self) -> float:
        """From asking for a version until it is there."""
        return 2 * self.latency_ms + self.transfer_ms


@dataclass(frozen=True)
class Credit:
    """What the trainer has out."""

    lease: float
    """Candidates in a lease."""
    batches: float
    """Train batches that are leased or on hand when a step has begun."""


@dataclass(frozen=True)
class Passage:
    """What becomes of leases, on average; times in milliseconds."""

    selected: float
    """Share of the trained examples that were selected, without stalls."""
    under_way_ms: float
    """From the grant of a lease to the training of what it brought."""
    at_selector_ms: float
    """Of that: behind another lease at its selector."""
    on_hand_ms: float
    """Of that: kept, and waiting to be trained."""
    is_short: bool = False
    """Whether what is out is trained before answers are back."""


def transfer_ms(
    num_bytes: float,
    *,
    bytes_per_s: float,
    hosts: int = 1,
    latency_ms: float = 0.0,
    window_bytes: float = math.inf,
) -> float:
    """The bytes of a snapshot to so many hosts, which share a line and ask for `window_bytes` ahead."""
    line_ms = 1e3 * num_bytes * hosts / bytes_per_s
    # Who asks for a window at a time gets no more than that in a round trip.
    return max(line_ms, 2 * latency_ms * max(0.0, num_bytes - window_bytes) / window_bytes)


def passage(
    *, step_ms: float, selector_ms: float, work_ms: float, credit: Credit, line: Line, spread_ms: float = 0.0
) -> Passage:
    """`selector_ms`: the selectors' work for one step, shared by all; `work_ms`: one lease by one of them.

    `spread_ms`: how much both vary, together.
    """
    held_ms, out_ms = 2 * line.latency_ms + work_ms, credit.batches * step_ms
    is_short = held_ms > out_ms - EARLY * step_ms
    credit_ms = (held_ms + AWAIT * step_ms) / credit.batches if is_short else 0.0
    needed_ms = max(selector_ms, credit_ms)
    later_ms = max(step_ms, needed_ms) + wait_for_later_ms(needed_ms - step_ms, spread_ms)
    selected = step_ms / later_ms
    under_way_ms = out_ms / selected
    spare_ms = max(0.0, under_way_ms - held_ms - AWAIT * step_ms)
    at_selector_ms = spare_ms * min(1.0, selected * selector_ms / step_ms) ** PILE
    on_hand_ms = under_way_ms - held_ms - at_selector_ms
    return Passage(selected, under_way_ms, at_selector_ms, on_hand_ms, is_short)


def staleness(found: Passage, *, step_ms: float, interval: int, line: Line) -> float:
    """Steps from the weights that scored an example to its training, on average."""
    pull, behind = line.pull_ms / step_ms, found.at_selector_ms / step_ms
    if pull > interval:
        return found.under_way_ms / step_ms + pull - behind + interval / 2 + pull / 2
    return found.under_way_ms / step_ms + mean_ceil(pull - 2 * behind, pull) + (interval - 1) / 2


def filled(found: Passage, line: Line) -> float:
    """Share of the examples that are filled: what is not selected, and what a stall outlasts."""
    uncovered_ms = max(0.0, line.stall_ms - found.on_hand_ms)
    return 1.0 - found.selected * (1.0 - min(1.0, uncovered_ms / line.stall_every_ms))


def mean_ceil(low: float, high: float) -> float:
    """The mean of ceil(x) over `low` to `high`: whole steps, of times that are spread evenly."""
    if high - low < 1e-9:
        return math.ceil(high - 1e-9)
    return (_sum_of_ceils(high) - _sum_of_ceils(low)) / (high - low)


def _sum_of_ceils(x: float) -> float:
    """The integral of ceil from 0 to x."""
    whole = math.floor(x)
    return whole * (whole + 1) / 2 + (x - whole) * (whole + 1)


def wait_for_later_ms(apart_ms: float, spread_ms: float) -> float:
    """How much later than the mean of the slower one the later of two comes; normal, `spread_ms` together."""
    if spread_ms <= 0.0:
        return 0.0
    z = abs(apart_ms) / spread_ms
    density = math.exp(-z * z / 2.0) / math.sqrt(2.0 * math.pi)
    return spread_ms * density - abs(apart_ms) * 0.5 * math.erfc(z / math.sqrt(2.0))
