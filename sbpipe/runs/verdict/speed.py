"""The one change that would help most if a selector is too slow, given the run's settings. Pure."""

import math

from sbpipe.config.traits import TRAITS, Traits
from sbpipe.runs.numbers import number
from sbpipe.runs.verdict.finding import Numbers

_WHOLE = 0.9
"""From this keep rate on there is hardly anything left to select."""


def speed_knob(numbers: Numbers) -> str:
    """Changes that cost no selectivity come first, then those that cost least of it."""
    # "auto" and the narrowest precision leave nothing faster to ask for.
    if numbers.get("scoring.precision_asked") in ("fp32", "bf16", "fp16"):
        return "selector.precision = 'auto'"
    count, behind = number(numbers, "selectors") or 1.0, late_share(numbers)
    needed = max(count + 1.0, math.ceil(count / max(0.1, 1.0 - behind)))
    another = f"another selector ({needed:.0f} in place of {count:.0f})"
    if numbers.get("keep.at_bound"):
        return another  # the keep rate is at a bound of the policy
    keep = number(numbers, "keep.last")
    if keep is None:
        return "a larger selection.keep"
    bounds = TRAITS.get(str(numbers.get("policy")), Traits()).keep_bounds
    if bounds is not None and keep < bounds.most:
        return "selection.keep = 'auto'"
    # The keep rate at which the candidates scored in time would have been enough.
    reached = keep / max(0.1, 1.0 - behind)
    is_in_use = f"{reached:.2f}" == f"{keep:.2f}"
    if is_in_use or reached > _WHOLE:
        return another
    return f"selection.keep = {reached:.2f} in place of {keep:.2f}"


def filled_by(numbers: Numbers) -> dict[str, float]:
    """Numbers of examples that were filled in, by reason."""
    return {name: number(numbers, f"fill.{name}") or 0.0 for name in ("starting", "alone", "late")}


def late_share(numbers: Numbers) -> float:
    """How far selectors were too slow: a share of the loop's time or of what it trained, the larger one."""
    by = filled_by(numbers)
    total, filled = sum(by.values()), number(numbers, "fill.share") or 0.0
    late = filled * by["late"] / total if total else filled
    return min(1.0, max(number(numbers, "trainer.idle_ratio") or 0.0, late))
