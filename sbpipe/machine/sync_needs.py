"""How often weights must go out and how far ahead must be leased: pure functions of seconds.

What costs ask for, and when that changes what is in use. A run decides by it as it measures
(`trainer/pacing.py`), a plan forecasts by it (`planner.py`); it must not know how anything was measured.
"""

import math
from dataclasses import dataclass

PUBLISH_SHARE, APPLY_SHARE = 0.01, 0.05
"""The share of a step that publishing may take, and of the selector's time that applying may at least."""
FOLLOWED_SHARE = 0.2
"""The share of the selector's time that applying may take where the keep rate follows what is left of it."""
BUSY = 0.95
"""The share of a step's time that selectors are asked to be busy: what is left over keeps them in time."""
LONGEST_INTERVAL, GREATEST_DEPTH = 64, 8
MARGIN = 1.5
"""How far beyond what is in use a need must be to change it: what is measured scatters."""


@dataclass(frozen=True)
class SyncCosts:
    """Means, in seconds."""

    step_s: float
    """A train step, without waiting and publishing."""
    publish_s: float = 0.0
    """A publish, as the loop sees it."""
    apply_s: float = 0.0
    """A selector puts new weights to use."""
    transfer_s: float = 0.0
    """A snapshot's way over the wire."""
    score_s: float = 0.0
    """What the selectors score for one step takes one of them."""
    round_trip_s: float = 0.0
    """A lease's way there and its answer's way back, without the work in between."""
    apply_share: float = APPLY_SHARE
    """The share of the selector's time that applying may take where scoring leaves none."""


def interval_needed(costs: SyncCosts) -> dict[str, float]:
    """The interval that each limit asks for, by its reason; the greatest counts."""
    step_s = max(costs.step_s, 1e-9)
    # Where scoring alone takes the whole step, applying still gets a small share of the selector's time.
    spare_s = max(BUSY * step_s - costs.score_s, costs.apply_share * max(step_s, costs.score_s))
    arrive_s = costs.transfer_s + costs.apply_s
    return {
        f"a publish takes {_ms(costs.publish_s)} of a step of {_ms(step_s)}": costs.publish_s
        / (PUBLISH_SHARE * step_s),
        f"weights need {_ms(arrive_s)} to arrive, a step {_ms(step_s)}": arrive_s / step_s,
        f"applying takes {_ms(costs.apply_s)}, and a step leaves {_ms(spare_s)} for it": costs.apply_s
        / spare_s,
    }


def depth_needed(costs: SyncCosts) -> float:
    """The steps that pass while a lease and its answer travel; one batch more is leased."""
    return costs.round_trip_s / max(costs.step_s, 1e-9)


def revised(current: int, needed: float, most: int) -> int:
    """The number to use from now on: what is needed, rounded up, unless what is in use is near enough."""
    if current * 0.5 < needed <= current * MARGIN:
        return min(current, most)
    return min(max(1, math.ceil(needed)), most)


def interval_to_use(current: int, needed: float, *, depth: int, max_staleness: int) -> int:
    """The interval from now on, within the bound on staleness (0 = none): depth + interval - 1."""
    return revised(current, needed, max(1, min(LONGEST_INTERVAL, _bound(max_staleness) - depth + 1)))


def depth_to_use(current: int, needed: float, *, interval: int, max_staleness: int) -> int:
    """The depth from now on, within the same bound. Two at least: one is trained while the next is scored."""
    most = max(2, min(GREATEST_DEPTH, _bound(max_staleness) - interval + 1))
    return 1 + revised(current - 1, needed, most - 1)


def _bound(max_staleness: int) -> int:
    return max_staleness or LONGEST_INTERVAL + GREATEST_DEPTH


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"
