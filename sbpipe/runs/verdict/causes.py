"""Why the loop waited or its batches were filled in, and what would help. Pure."""

from sbpipe.runs.numbers import number
from sbpipe.runs.verdict.finding import WAITED, Finding, Numbers, percent
from sbpipe.runs.verdict.speed import filled_by, late_share, speed_knob

BUSY = 0.6
"""If a selector is busy less than this while the loop waits, something other than its work holds it up."""
CROWDED = 0.75
"""A selector on a CPU had a core for this share of its forward pass; below it, others use its cores too."""
LATE = 0.05
"""A selector that is late for less than this share of the trained examples is fast enough: it also spends
time measuring.
"""
FASTER_DATA = "more workers (data.workers; in your own loop num_workers of the DataLoader), or cheaper views"

_LOST = Finding("Selectors were lost on the way.", "selectors that were lost", "look into the selector's log")


def is_own_data_path(numbers: Numbers) -> bool:
    """Whether most of the wait was for the trainer's own loading, which no selector can shorten."""
    idle = number(numbers, "trainer.idle_ratio") or 0.0
    own, view_ms, step_ms = (
        number(numbers, name) for name in ("trainer.wait_view_ratio", "trainer.view_ms", "trainer.step_ms")
    )
    if own is not None:
        return own > 0.5 * idle and own >= WAITED
    return bool(view_ms and view_ms > (step_ms or 0))


def cause_of(numbers: Numbers) -> Finding:
    """What the loop waited for; the most reliable sign is checked first."""
    if is_own_data_path(numbers):
        view_ms, step_ms = number(numbers, "trainer.view_ms"), number(numbers, "trainer.step_ms")
        text = "The trainer's own data path is too slow"
        text += (
            f": loading a train batch takes {view_ms:.0f} ms, a step {step_ms:.0f} ms."
            if view_ms and step_ms
            else "."
        )
        return Finding(text, "the trainer's own data path", FASTER_DATA)
    # A selector that is gone did nothing wrong while it was there: how busy it was explains no such fill.
    if _was_alone(numbers):
        return _LOST
    if (number(numbers, "selector.busy_ratio") or 0.0) < BUSY:
        return _held_up(numbers)
    # With keep = auto a selector is kept busy on purpose, so being busy does not explain the fills.
    has_waited = (number(numbers, "trainer.idle_ratio") or 0.0) >= WAITED
    return _starting(numbers) if not has_waited and _came_late(numbers) else _too_slow(numbers)


def _held_up(numbers: Numbers) -> Finding:
    """Why a selector was not busy while the loop waited."""
    transfer_ms, step_ms = number(numbers, "sync.transfer_ms") or 0.0, number(numbers, "trainer.step_ms")
    if step_ms and transfer_ms > step_ms:
        text = f"A snapshot of the weights takes {transfer_ms:.0f} ms over the link, a step {step_ms:.0f} ms."
        return Finding(text, "the link", "a longer sync.interval, or sync.dtype = 'bf16'")
    if any(number(numbers, name) for name in ("selector.lost", "lease.fallback")):
        return _LOST
    if _came_late(numbers):
        return _starting(numbers)
    # A selector that gets no core answers slowly and looks idle.
    if crowded := _crowded(numbers):
        return crowded
    text = "The selector was not busy either: it was stopped, or has too little work ahead."
    return Finding(text, "a selector that idled", "a larger sync.depth")


def _starting(numbers: Numbers) -> Finding:
    """Most batches were filled in before a selector was ready."""
    late = late_share(numbers)
    if number(numbers, "selector.scored") == 0:
        # A selector that never answered left no other numbers.
        text = "No selector was ready in time."
    elif late < LATE:
        text = "Once it was ready, the selector was fast enough."
    else:
        text = f"Once it was ready, the selector was late for {percent(late)} of the trained examples."
    return Finding(text, "the selector's start", "a longer run: the selector starts once")


def _came_late(numbers: Numbers) -> bool:
    """Whether most fills happened before a selector was ready."""
    by = filled_by(numbers)
    return by["starting"] > 0.5 * sum(by.values())


def _was_alone(numbers: Numbers) -> bool:
    """Whether most fills, and enough to report, happened while no selector was left."""
    by = filled_by(numbers)
    return (number(numbers, "fill.share") or 0.0) >= WAITED and by["alone"] > 0.5 * sum(by.values())


def _crowded(numbers: Numbers) -> Finding | None:
    """The finding that others use the selector's cores; None if it had them to itself."""
    score_s, cpu = (number(numbers, name) or 0.0 for name in ("selector.score_s", "selector.score_cpu_s"))
    if not 0.0 < cpu < CROWDED * score_s:
        return None
    had = percent(cpu / score_s)
    text = f"The selector's device is shared: its forward pass had a core for {had} of its time."
    return Finding(text, "the selector's device, which is shared", "cores of its own for the selector")


def _too_slow(numbers: Numbers) -> Finding:
    """What kept a selector busy all the time."""
    view_s, score_s = (number(numbers, name) or 0.0 for name in ("selector.view_s", "selector.score_s"))
    if view_s > score_s:
        text = f"The selector's data loading is too slow: {view_s:.1f} s, its forward pass {score_s:.1f} s."
        return Finding(text, "the selector's data loading", FASTER_DATA)
    if crowded := _crowded(numbers):
        return crowded
    keep, precision = number(numbers, "keep.last"), numbers.get("scoring.precision")
    share = percent(number(numbers, "keep_rate") if keep is None else keep)
    if numbers.get("keep.at_bound") in ("least", "between"):
        text = f"The selector is fast enough on average to keep only {share} of the candidates; answers vary."
        return Finding(text, "answers that came late", "a larger sync.depth")
    forward = f"The selector's forward pass ({precision})" if precision else "The selector's forward pass"
    text = f"{forward} is too slow to keep only {share} of the candidates."
    return Finding(text, "the selector's forward pass", speed_knob(numbers))
