"""What a pipeline will do on given hardware: numbers in, forecast out. Pure; knows neither torch nor files.

T a train step as the loop takes it, with its share of publishing, and F_S the scoring cost of a candidate,
both while the other side works too; b the batch, n selectors, A an apply, L the transfer of a snapshot, i the
sync interval, V loading a batch; O what a lease costs its selector apart from its candidates, l the leases of
a step, m a message's way; t and s what a step and a score take while the other side rests, as a share of T
and F_S (1 where they share nothing); r the second device's training speed, eta the efficiency of
data-parallel training:

    S = b F_S / (keep n) + l O / n + A / i      what the selectors need for the candidates of one step
    T' = S + t (T - S) if S < T, else T         the loop's step: for the rest of it the selectors rest
    S' = S if S < T, else T + s (S - T)         theirs: for the rest of it the loop rests
    D = max(0, (W + 2 m + V) / N - S)           what of a lease's way is not covered by others that are out
    period P = E max(T', S' + D)                where a late batch is waited for: whichever comes later
    idle = 1 - T' / P                           of a loop that waits
    filled = 1 - T / S                          where S > T and a late batch is filled: the period is T then
    staleness, and what is filled on account of leases that are long under way: `sbpipe/machine/line.py`
    plain training takes t T; data-parallel training is (1 + r eta) t times as fast
    break-even worth k* = (1 + r eta) t P / (t T)

What is filled counts as chosen at random: where a share f is, k* - 1 is divided by 1 - f.

"auto" chooses keep = b F_S / (n (0.95 T - A / i) - 2 O) within the policy's bounds. What it makes of the
interval is `sync_needs.py`, by which runs decide too.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from sbpipe.machine.line import Credit, Line, Passage, filled, passage, staleness, wait_for_later_ms
from sbpipe.machine.sync_needs import (
    APPLY_SHARE,
    BUSY,
    FOLLOWED_SHARE,
    LONGEST_INTERVAL,
    SyncCosts,
    depth_needed,
    depth_to_use,
    interval_needed,
    interval_to_use,
)

EFFICIENCY = 0.9
"""Data-parallel training on two devices that are alike, where nobody says otherwise."""
LEASES = 2
"""Of a batch whose keep rate follows speed: late ones are filled, and what is leased for them are halves."""
SMALL, LARGE = 1.1, 3.0
"""A break-even worth that almost any policy has, and one that hardly any has."""

Bounds = tuple[float, float]
"""Least and greatest keep rate that a policy was seen to be good at."""
Lending = Callable[["Costs", float], Credit]
"""What the trainer has out, of these costs and this keep rate."""


@dataclass(frozen=True)
class Costs:
    """What was measured, or given for hardware that is not here."""

    batch_size: int
    step_ms: float
    """Forward, backward, optimizer of one train batch."""
    score_us: float
    """One candidate: loaded, scored and judged by one selector."""
    lease_ms: float = 0.0
    """A lease apart from its candidates: read, its answer encoded and sent, its event written."""
    message_ms: float = 0.0
    """A message's way from process to process, latency apart: both sides' threads have to wake."""
    load_ms: float = 0.0
    """The trainer loads and augments one train batch, beside the step before."""
    publish_ms: float = 0.0
    apply_ms: float = 0.0
    transfer_ms: float = 0.0
    """The bytes of a snapshot over the line; 0 in shared memory."""
    latency_ms: float = 0.0
    """A message's way to the selectors' hosts, one way."""
    stall_ms: float = 0.0
    """Every `stall_every_ms`, nothing passes for so long."""
    stall_every_ms: float = math.inf
    selectors: int = 1
    second_speed: float | None = None
    """Train steps of the second device per train step of the first; None: not known."""
    efficiency: float = EFFICIENCY
    step_alone: float = 1.0
    """A step while the selectors rest, over one while they work: below 1 where they share a memory."""
    score_alone: float = 1.0
    step_spread: float = 0.0
    """Standard deviation of a step over its mean: on a machine that others use, neither side is regular."""
    score_spread: float = 0.0

    @property
    def line(self) -> Line:
        """What lies between the trainer and its selectors."""
        return Line(self.latency_ms, self.transfer_ms, self.stall_ms, self.stall_every_ms)

    @property
    def loop_ms(self) -> float:
        """A step of the bare loop while the selectors work."""
        return max(self.step_ms, self.load_ms)

    @property
    def plain_ms(self) -> float:
        """A step of plain training on the first device."""
        return max(self.step_ms * self.step_alone, self.load_ms)


@dataclass(frozen=True)
class Forecast:
    """What a run will do."""

    keep: float
    interval: int
    plain_ms: float
    """A step of plain training."""
    selector_ms: float
    """What the selectors need for the candidates of one step."""
    period_ms: float
    """From step to step, where a late batch is waited for."""
    idle: float
    """Share of the trainer's time, where a late batch is waited for."""
    fill_ms: float
    """From step to step, where a late batch is filled."""
    fills: float
    """Share of the trained examples that no selector judged, where a late batch is filled."""
    staleness: float
    """Steps, on average."""
    batches_out: float
    """Train batches that are leased or on hand when a step has begun."""
    is_short: bool
    """Whether these are trained before answers are back, of selectors that are fast enough."""
    candidates: float
    """Candidates per second, over those of plain training, where a late batch is waited for."""
    data_parallel: float | None
    """Speed of both devices training, over one."""

    @property
    def break_even(self) -> float:
        """The worth at which it pays, where late batches are filled: against both devices, or one alone."""
        return 1.0 + ((self.data_parallel or 1.0) * self.fill_ms / self.plain_ms - 1.0) / (1.0 - self.fills)

    @property
    def break_even_waiting(self) -> float:
        """The same where late batches are waited for."""
        return (self.data_parallel or 1.0) * self.period_ms / self.plain_ms


def forecast(
    costs: Costs,
    *,
    keep: float | None,
    interval: int | None,
    bounds: Bounds = (0.0, 1.0),
    lending: Lending | None = None,
) -> Forecast:
    """What a run with these settings will do; None is what "auto" makes of it.

    Without `lending` a selector is always in time with one batch ahead, if it is fast enough.
    """
    if interval is None:
        interval = interval_reached(costs, keep, bounds)
    if keep is None:
        keep = keep_reached(costs, interval, bounds)
    alike = Credit(costs.batch_size / (keep * costs.selectors), 1.0)
    credit = alike if lending is None else lending(costs, keep)
    loop_ms = costs.loop_ms + costs.publish_ms / interval
    leases = costs.batch_size / (keep * credit.lease)
    selector_ms = (
        scoring_ms(costs, keep) + leases * costs.lease_ms / costs.selectors + costs.apply_ms / interval
    )
    is_late = selector_ms > loop_ms
    busy_ms = loop_ms if is_late else selector_ms + costs.step_alone * (loop_ms - selector_ms)
    spread_ms = math.hypot(costs.step_spread * loop_ms, costs.score_spread * selector_ms)
    work_ms = credit.lease * costs.score_us / 1e3 + costs.lease_ms + costs.apply_ms / interval
    way_ms = 2 * (costs.latency_ms + costs.message_ms)
    # Who waits gets what is out in as long as it is under way, and loaded.
    exposed_ms = max(0.0, (way_ms + work_ms + costs.load_ms) / credit.batches - selector_ms)
    alone_ms = costs.score_alone * (selector_ms - loop_ms) if is_late else selector_ms - loop_ms
    ready_ms = loop_ms + alone_ms + exposed_ms
    period_ms = max(busy_ms, ready_ms) + wait_for_later_ms(ready_ms - busy_ms, spread_ms)
    found = Passage(1.0 if not is_late else loop_ms / selector_ms, loop_ms, 0.0, 0.0)
    if lending is not None:
        found = passage(
            step_ms=loop_ms,
            selector_ms=selector_ms,
            work_ms=work_ms + 2 * costs.message_ms,
            credit=credit,
            line=costs.line,
            spread_ms=spread_ms,
        )
    r = costs.second_speed
    return Forecast(
        keep=keep,
        interval=interval,
        plain_ms=costs.plain_ms,
        selector_ms=selector_ms,
        period_ms=period_ms,
        idle=1.0 - busy_ms / period_ms,
        fill_ms=busy_ms,
        fills=filled(found, costs.line),
        staleness=staleness(found, step_ms=loop_ms, interval=interval, line=costs.line),
        batches_out=credit.batches,
        is_short=found.is_short and not is_late,
        candidates=costs.plain_ms / (keep * period_ms),
        data_parallel=None if r is None else max(1.0, (1.0 + r * costs.efficiency) * costs.step_alone),
    )


def scoring_ms(costs: Costs, keep: float) -> float:
    """What one of the selectors spends on the candidates of a step."""
    return costs.batch_size * costs.score_us / 1e3 / (keep * costs.selectors)


def keep_reached(costs: Costs, interval: int, bounds: Bounds = (0.0, 1.0)) -> float:
    """The keep rate that "auto" settles at: as many candidates as are scored in a step's time."""
    leases_ms = LEASES * costs.lease_ms / costs.selectors
    spare_ms = BUSY * costs.loop_ms - costs.apply_ms / interval - leases_ms
    least, most = bounds
    return min(most, max(least, scoring_ms(costs, 1.0) / spare_ms)) if spare_ms > 0.0 else most


def interval_reached(
    costs: Costs,
    keep: float | None,
    bounds: Bounds = (0.0, 1.0),
    *,
    depth: int = 2,
    max_staleness: int = 0,
) -> int:
    """The sync interval that "auto" settles at, decision by decision from 1 on as a run comes to it.

    With keep "auto" too (None), what is scored follows each of them.
    """
    interval = 1
    for _ in range(LONGEST_INTERVAL):
        rate = keep_reached(costs, interval, bounds) if keep is None else keep
        needed = max(interval_needed(_sync_costs(costs, rate, keep_follows=keep is None)).values())
        new = interval_to_use(interval, needed, depth=depth, max_staleness=max_staleness)
        if new == interval:
            break
        interval = new
    return interval


def depth_reached(costs: Costs, *, interval: int, max_staleness: int = 0) -> int:
    """The depth that "auto" settles at, from 2 on."""
    needed = depth_needed(_sync_costs(costs, keep=1.0, keep_follows=False))
    return depth_to_use(2, needed, interval=interval, max_staleness=max_staleness)


def _sync_costs(costs: Costs, keep: float, *, keep_follows: bool) -> SyncCosts:
    """What a run would measure."""
    return SyncCosts(
        step_s=costs.loop_ms / 1e3,
        publish_s=costs.publish_ms / 1e3,
        apply_s=costs.apply_ms / 1e3,
        transfer_s=costs.line.pull_ms / 1e3,
        score_s=scoring_ms(costs, keep) / 1e3,
        round_trip_s=2 * costs.latency_ms / 1e3,
        apply_share=FOLLOWED_SHARE if keep_follows else APPLY_SHARE,
    )


def advice(plan: Forecast, worth: float | None = None) -> str:
    """In a sentence: use it, do not, or measure; `worth` is k as `sbpipe worth` measured it."""
    against = (
        "plain training on the first device alone"
        if plan.data_parallel is None
        else f"training on both devices ({plan.data_parallel:.2f} times as fast as one)"
    )
    k = plan.break_even
    if worth is not None:
        if worth > k:
            return f"use it: worth {worth:.2f} is above {k:.2f}, which is what {against} amounts to"
        return f"do not use it: worth {worth:.2f} is below {k:.2f}, which is what {against} amounts to"
    if k <= SMALL:
        return (
            f"use it: it is ahead of {against} from a worth of {k:.2f} on, which selection nearly always has"
        )
    if k >= LARGE:
        return f"do not use it: {against} is level with a worth of {k:.2f}, which selection hardly ever has"
    return f"measure: it is ahead of {against} from a worth of {k:.2f} on; `sbpipe worth` tells yours"


def remedy(plan: Forecast, *, is_fastest: bool = False) -> str:
    """What would help most where the selectors do not keep up; empty where they do.

    `is_fastest`: no precision scores faster here than the one that was planned with.
    """
    if plan.fills < 0.05:
        return ""
    if plan.is_short:
        return (
            f"the selectors are fast enough, but the {plan.batches_out:.1f} batches leased ahead are "
            "trained before answers are back: lease further ahead (sync.depth), at the price of staleness"
        )
    reached = min(1.0, plan.keep / (1.0 - plan.fills))
    faster = "" if is_fastest else "score in a faster precision, "
    return (
        f"the selectors judge {100 * (1 - plan.fills):.0f} % of what is trained: {faster}add a selector, or "
        f"keep {reached:.2f} of the candidates instead of {plan.keep:.2f}"
    )
