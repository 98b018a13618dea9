"""Worth k of a policy: updates that random selection needs to end at the same error, over the updates used.

Every run's learning rate decays inside its own budget, so final errors are compared and none is read off in
the middle of a run. Random selection's errors over its budgets, each a mean over seeds, are made monotone
(more updates never count as worse) and interpolated linearly in the logarithm of the updates. Nothing is
extrapolated: beyond the largest and below the smallest budget only the side is stated. The interval comes
from drawing seeds with replacement, the same ones for random and for the policy. Pure.
"""

import math
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sbpipe.runs.study.arm import Arm
from sbpipe.runs.study.spread import BySeed, mean_of, sd_of, spread_of

INTERVAL = 0.9
"""Share of the draws inside the interval."""
DRAWS = 4000
ABOVE, BELOW = math.inf, 0.0
"""More updates than the largest budget, fewer than the smallest."""


@dataclass(frozen=True)
class Budget:
    """The final errors of random selection whose learning rate decays inside so many updates."""

    updates: float
    errors: BySeed


@dataclass(frozen=True)
class Worth:
    """k and its interval in multiples of the updates used; ABOVE or BELOW outside the budgets."""

    k: float
    low: float | None
    high: float | None
    """None: too few seeds for an interval."""


def monotone(errors: Sequence[float]) -> list[float]:
    """The nearest sequence that never rises: rising neighbours are replaced by their mean."""
    blocks: list[tuple[float, int]] = []
    for error in errors:
        blocks.append((error, 1))
        while len(blocks) > 1 and blocks[-1][0] > blocks[-2][0]:
            (right, n), (left, m) = blocks.pop(), blocks.pop()
            blocks.append(((left * m + right * n) / (m + n), m + n))
    return [error for error, n in blocks for _ in range(n)]


def updates_to(error: float, updates: Sequence[float], curve: Sequence[float]) -> float:
    """The fewest updates at which a non-rising curve reaches an error; ABOVE or BELOW outside the curve."""
    if error >= curve[0]:
        return updates[0] if error == curve[0] else BELOW
    for k in range(1, len(curve)):
        if curve[k] <= error:
            share = (curve[k - 1] - error) / (curve[k - 1] - curve[k])
            at = updates[k - 1] * (updates[k] / updates[k - 1]) ** share
            # Rounding must not lead beyond the budget.
            return float(min(at, updates[k]))
    return ABOVE


def worth_of(errors: BySeed, updates: float, budgets: Sequence[Budget]) -> Worth | None:
    """The worth of a policy with these final errors after so many updates; None if either side has none."""
    seeds = sorted({*errors, *(seed for budget in budgets for seed in budget.errors)}, key=str)
    whole = _worth_of_draw(seeds, errors, updates, budgets)
    if whole is None:
        return None
    shared = [seed for seed in errors if any(seed in budget.errors for budget in budgets)]
    if len(shared) < 2:
        return Worth(whole, None, None)
    low, high = _interval(seeds, errors, updates, budgets)
    return Worth(whole, low, high)


def _worth_of_draw(
    seeds: Sequence[int | None], errors: BySeed, updates: float, budgets: Sequence[Budget]
) -> float | None:
    ours = mean_of([errors[seed] for seed in seeds if seed in errors])
    means = [
        (budget.updates, mean)
        for budget in budgets
        if (mean := mean_of([budget.errors[seed] for seed in seeds if seed in budget.errors])) is not None
    ]
    if ours is None or not means:
        return None
    curve = monotone([mean for _, mean in means])
    return updates_to(ours, [at for at, _ in means], curve) / updates


def _interval(
    seeds: Sequence[int | None], errors: BySeed, updates: float, budgets: Sequence[Budget]
) -> tuple[float, float]:
    # A generator of its own with a fixed seed: the same results always give the same interval.
    draw = random.Random(0)
    known: dict[tuple[str, ...], float | None] = {}
    found: list[float] = []
    for _ in range(DRAWS):
        drawn = sorted(draw.choices(seeds, k=len(seeds)), key=str)
        # With few seeds the same draw comes again and again: each is computed once.
        key = tuple(map(str, drawn))
        if key not in known:
            known[key] = _worth_of_draw(drawn, errors, updates, budgets)
        value = known[key]
        if value is not None:
            found.append(value)
    found.sort()
    # A drawn value, never a mean of two: one of the two may be ABOVE or BELOW.
    outside = int(len(found) * (1.0 - INTERVAL) / 2.0)
    return found[outside], found[-1 - outside]


def analyse_worth(arms: Sequence[Arm], budget_names: Collection[str]) -> dict[str, Any]:
    """The part `worth` of `results.json`: random's curve, and the worth of every other arm."""
    of_random = sorted(
        (arm for arm in arms if arm.name in budget_names and updates_of(arm)),
        key=lambda arm: updates_of(arm) or 0.0,
    )
    budgets = [Budget(updates_of(arm) or 0.0, arm.errors_by_seed) for arm in of_random if arm.errors]
    curve = monotone([mean_of(list(budget.errors.values())) or 0.0 for budget in budgets])
    flat_from = _flat_from(budgets, curve)
    points = [
        {"arm": arm.name, "updates": budget.updates, "n": len(arm.finished), "failed": arm.num_failed}
        | spread_of("error", arm.errors)
        | {"curve": at}
        for arm, budget, at in zip(of_random, budgets, curve, strict=True)
    ]
    policies = {arm.name: _policy(arm, budgets, flat_from) for arm in arms if arm.name not in budget_names}
    return {"curve": points, "flat_from": flat_from, "policies": policies}


def updates_of(arm: Arm) -> float | None:
    """Mean updates of an arm's runs; None while none has finished."""
    return mean_of(arm.numbers("steps"))


def _policy(arm: Arm, budgets: Sequence[Budget], flat_from: float | None) -> dict[str, Any]:
    """One policy: k as a number, or its side of the budgets; an interval's end of None is open."""
    updates = updates_of(arm)
    row: dict[str, Any] = {"updates": updates, "n": len(arm.finished), "failed": arm.num_failed}
    row |= spread_of("error", arm.errors)
    worth = worth_of(arm.errors_by_seed, updates, budgets) if updates else None
    if worth is None or not updates:
        return row | {"worth": None, "beyond": None, "low": None, "high": None, "is_flat": False}
    least, most = budgets[0].updates / updates, budgets[-1].updates / updates
    return row | {
        "worth": worth.k if least <= worth.k <= most else None,
        "beyond": "above" if worth.k == ABOVE else "below" if worth.k == BELOW else None,
        "low": None if worth.low in (None, BELOW) else min(worth.low or 0.0, most),
        "high": None if worth.high in (None, ABOVE) else max(worth.high or 0.0, least),
        "has_interval": worth.low is not None,
        "least": least,
        "most": most,
        "is_flat": flat_from is not None and worth.k * updates > flat_from * (1 + 1e-9),
    }


def _run_sd(budgets: Sequence[Budget]) -> float:
    """The standard deviation of single runs of one budget, pooled over budgets; 0 if no budget has one."""
    spreads = [sd_of(list(budget.errors.values())) for budget in budgets]
    return math.sqrt(mean_of([sd**2 for sd in spreads if sd is not None]) or 0.0)


def _flat_from(budgets: Sequence[Budget], curve: Sequence[float]) -> float | None:
    """Updates after which random's error falls by less than one run's spread; None if it still falls."""
    # The spread of these budgets only: short runs spread more, and say nothing about the floor.
    for k in range(len(curve) - 1):
        if curve[k] - curve[-1] < _run_sd(budgets[k:]):
            return budgets[k].updates
    return None


def stated_worth(policy: Mapping[str, Any]) -> str:
    """k in words: `2.31`, `> 4`, `< 0.5`; empty while it is unknown."""
    if policy["worth"] is not None:
        return f"{policy['worth']:.2f}"
    if policy["beyond"] is None:
        return ""
    return f"> {policy['most']:.3g}" if policy["beyond"] == "above" else f"< {policy['least']:.3g}"


def stated_interval(policy: Mapping[str, Any]) -> str:
    """The interval in words: `1.9 to 2.8`, `1.9 to > 4`; empty if there is none."""
    if not policy.get("has_interval"):
        return ""
    low = f"< {policy['least']:.3g}" if policy["low"] is None else f"{policy['low']:.2f}"
    high = f"> {policy['most']:.3g}" if policy["high"] is None else f"{policy['high']:.2f}"
    return f"{low} to {high}"
