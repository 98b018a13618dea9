"""The one change that would help a selector most that is too slow, given what the run had. Pure."""

import math

from sbpipe.config.traits import TRAITS, Traits
from sbpipe.runs.numbers import number
from sbpipe.runs.verdict.finding import Numbers

_WHOLE = 0.9
"""A keep rate from which on there is hardly anything to select."""


def speed_knob(numbers: Numbers) -> str:
    """What costs no selectivity first, then what costs least of it."""
    # Of "auto" and of the narrowest one nothing faster is left to ask for.
    if numbers.get("scoring.precision_asked") in ("fp32", "bf16", "fp16"):
        return "selector.precision = 'auto'"
    count, behind = number(numbers, "selectors") or 1.0, late_share(numbers)
    needed = max(count + 1.0, math.ceil(count / max(0.1, 1.0 - behind)))
    another = f"another selector ({needed:.0f} in place of {count:.0f})"
    if numbers.get("keep.at_bound"):
        return another  # the keep rate has gone as far as the policy takes it
    keep = number(numbers, "keep.last")
    if keep is None:
        return "a larger selection.keep"
    bounds = TRAITS.get(str(numbers.get("policy")), Traits()).keep_bounds
    if bounds is not None and keep < bounds.most:
        return "selection.keep = 'auto'"
    # So many candidates for each one kept as were scored while the loop did not wait.
    reached = keep / max(0.1, 1.0 - behind)
    return another if reached > _WHOLE else f"selection.keep = {reached:.2f} in place of {keep:.2f}"


def filled_by(numbers: Numbers) -> dict[str, float]:
    """Examples that were filled in, by the reason."""
    return {name: number(numbers, f"fill.{name}") or 0.0 for name in ("starting", "alone", "late")}


def late_share(numbers: Numbers) -> float:
    """Share of their work that the selectors were too slow for: of the loop's time, or of what it trained."""
    by = filled_by(numbers)
    total, filled = sum(by.values()), number(numbers, "fill.share") or 0.0
    late = filled * by["late"] / total if total else filled
    return min(1.0, max(number(numbers, "trainer.idle_ratio") or 0.0, late))
