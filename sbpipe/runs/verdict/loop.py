"""Did the loop wait, and for what? From the numbers of a summary. Pure."""

from sbpipe.runs.numbers import number
from sbpipe.runs.verdict.finding import WAITED, Finding, Numbers, percent

BUSY = 0.6
"""A selector that is busy less than this while the loop waits is held up by something else than its work."""
CROWDED = 0.75
"""Share of its forward pass that a selector on a CPU had a core for; below it, others use the cores too."""
_FASTER_DATA = "more workers (data.workers; in your own loop num_workers of the DataLoader), or cheaper views"
_NOT_SLOWER = "Not slower than plain training"


def loop_finding(numbers: Numbers) -> Finding:
    """Whether the loop waited."""
    mode, idle = numbers.get("mode"), number(numbers, "trainer.idle_ratio")
    if mode == "data-parallel":
        return Finding("There was no selector to wait for.", "Every device trained")
    if idle is None:
        return Finding("How long the loop waited is not known.", "Speed is not known")
    if mode in ("inline", "lockstep", "fixed-lag"):
        text = f"The loop waited {percent(idle)} of its time for scores: in mode {mode} the roles take turns."
        return Finding(text, f"Slower by design (mode {mode}: waited {percent(idle)})", _take_turns(numbers))
    filled = number(numbers, "fill.share") or 0.0
    if max(idle, filled) < WAITED:
        return Finding(
            f"The loop did not wait ({percent(idle)} of its time).", f"{_NOT_SLOWER} (waited {percent(idle)})"
        )
    cause = _cause(numbers)
    parts = [f"The loop waited {percent(idle)} of its time." if idle >= WAITED else "The loop did not wait."]
    if filled >= WAITED:
        parts.append(
            f"{percent(filled)} of the trained examples were not selected but filled in"
            f"{_when_filled(numbers)}."
        )
    parts.append(cause.text)
    if idle >= WAITED:
        return Finding(
            " ".join(parts),
            f"Slower than plain training (waited {percent(idle)}, for {cause.short})",
            cause.knob,
        )
    return Finding(
        " ".join(parts),
        f"{_NOT_SLOWER} ({percent(filled)} of its examples filled in without scores)",
        cause.knob,
    )


def _take_turns(numbers: Numbers) -> str:
    is_free = numbers.get("mode") == "inline" and (number(numbers, "trainer.idle_ratio") or 0.0) >= WAITED
    return "mode = 'pipelined' scores beside training, on a second device" if is_free else ""


def _cause(numbers: Numbers) -> Finding:
    """What the loop waited for, the surest sign first."""
    idle = number(numbers, "trainer.idle_ratio") or 0.0
    own, view_ms, step_ms = (
        number(numbers, name) for name in ("trainer.wait_view_ratio", "trainer.view_ms", "trainer.step_ms")
    )
    is_own = (
        own > 0.5 * idle and own >= WAITED if own is not None else bool(view_ms and view_ms > (step_ms or 0))
    )
    if is_own:
        text = "The trainer's own data path is too slow"
        text += (
            f": loading a train batch takes {view_ms:.0f} ms, a step {step_ms:.0f} ms."
            if view_ms and step_ms
            else "."
        )
        return Finding(text, "the trainer's own data path", _FASTER_DATA)
    if (number(numbers, "selector.busy_ratio") or 0.0) < BUSY:
        return _held_up(numbers)
    return _too_slow(numbers)


def _held_up(numbers: Numbers) -> Finding:
    """A selector that was not busy while the loop waited."""
    transfer_ms, step_ms = number(numbers, "sync.transfer_ms") or 0.0, number(numbers, "trainer.step_ms")
    if step_ms and transfer_ms > step_ms:
        text = f"A snapshot of the weights takes {transfer_ms:.0f} ms over the link, a step {step_ms:.0f} ms."
        return Finding(text, "the link", "a longer sync.interval, or sync.dtype = 'bf16'")
    if any(number(numbers, name) for name in ("selector.lost", "lease.fallback")):
        return Finding(
            "Selectors were lost on the way.", "selectors that were lost", "look into the selector's log"
        )
    if _came_late(numbers):
        # Of one that never answered nothing is known but that it was late.
        was_ready = number(numbers, "selector.scored") != 0
        text = (
            "Once it was ready, the selector was fast enough."
            if was_ready
            else "No selector was ready in time."
        )
        return Finding(text, "the selector's start", "a longer run: the selector starts once")
    # Without a core it is slow to answer too, and looks idle.
    if crowded := _crowded(numbers):
        return crowded
    text = "The selector was not busy either: it was stopped, or has too little work ahead."
    return Finding(text, "a selector that idled", "a larger sync.depth")


def _filled_by(numbers: Numbers) -> dict[str, float]:
    return {name: number(numbers, f"fill.{name}") or 0.0 for name in ("starting", "alone", "late")}


def _came_late(numbers: Numbers) -> bool:
    """Whether most of what was filled in was so before a selector was ready."""
    by = _filled_by(numbers)
    return by["starting"] > 0.5 * sum(by.values())


def _when_filled(numbers: Numbers) -> str:
    """Why examples were filled in, the main reason."""
    by = _filled_by(numbers)
    total = sum(by.values())
    if not total:
        return ", because the selector was late"
    words = {
        "starting": "before the selector was ready",
        "alone": "while no selector was left",
        "late": "because the selector was late",
    }
    main = max(by, key=lambda name: by[name])
    return f", {percent(by[main] / total)} of them {words[main]}"


def _crowded(numbers: Numbers) -> Finding | None:
    """Others that use the selector's cores; None if it had them for itself."""
    score_s, cpu = (number(numbers, name) or 0.0 for name in ("selector.score_s", "selector.score_cpu_s"))
    if not 0.0 < cpu < CROWDED * score_s:
        return None
    had = percent(cpu / score_s)
    text = f"The selector's device is shared: its forward pass had a core for {had} of its time."
    return Finding(text, "the selector's device, which is shared", "cores of its own for the selector")


def _too_slow(numbers: Numbers) -> Finding:
    """A selector that was busy all the time: with what?"""
    view_s, score_s = (number(numbers, name) or 0.0 for name in ("selector.view_s", "selector.score_s"))
    if view_s > score_s:
        text = f"The selector's data loading is too slow: {view_s:.1f} s, its forward pass {score_s:.1f} s."
        return Finding(text, "the selector's data loading", _FASTER_DATA)
    if crowded := _crowded(numbers):
        return crowded
    keep = percent(number(numbers, "keep_rate"))
    text = f"The selector's forward pass is too slow to keep only {keep} of the candidates."
    return Finding(
        text,
        "the selector's forward pass",
        "selector.precision = 'auto', a larger selection.keep, or another selector",
    )
