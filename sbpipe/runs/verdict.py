"""What a run came to, in words: a pure function of the numbers of its summary.

The promise is: never slower than plain training, never worse than random selection, better the faster the
second device is. The verdict says which of these was got, what the loop waited for, whether scores said
anything, what selection can be worth, what was lost, and the one setting that would help most. A number that
is missing is unknown, and the verdict then says less. It must not know how numbers were measured.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from sbpipe.runs.names.summary import NUMBERS, TROUBLE
from sbpipe.runs.numbers import number

WAITED = 0.02
"""Share of the loop's time, or of the trained examples, below which nobody would notice."""
BUSY = 0.6
"""A selector that is busy less than this while the loop waits is held up by something else than its work."""
CROWDED = 0.75
"""Share of its forward pass that a selector on a CPU had a core for; below it, others use the cores too."""
CLEAR, FAINT = 0.5, 0.1
"""Fidelity from which on scores rank like fresh losses, and below which they say nothing."""
SAME_RANKS = 0.9
"""Agreement with fp32 below which a precision costs ranks."""
DOUBTED = 0.98
"""Mean trust below which selection was uniform for a part of the run that matters."""
SWINGS = 6.0
ALIKE, SOME_ROOM = 0.8, 0.5
"""Effective share of the candidates above which nothing selected usefully in trials, below which some did."""

Numbers = Mapping[str, Any]


class Verdict(NamedTuple):
    """One headline, a finding of each kind, and the setting that would help most."""

    headline: str
    loop: str
    scores: str
    worth: str
    lost: str
    knob: str

    def numbers(self) -> dict[str, str]:
        """As entries of the summary."""
        return {f"verdict.{name}": text for name, text in self._asdict().items()}


class Finding(NamedTuple):
    """A finding: its sentences, its part of the headline, what to do about it ("" = nothing)."""

    text: str
    short: str
    knob: str = ""


def verdict_of(numbers: Numbers) -> Verdict:
    """Judge a run by its summary."""
    loop, scores, worth, lost = (
        _loop(numbers),
        _scores(numbers),
        _worth(numbers),
        _lost(numbers),
    )
    headline = "; ".join(finding.short for finding in (loop, scores, worth) if finding.short) + "."
    if numbers.get("status") == "stopped":
        headline = f"Stopped before its end. {headline}"
    knobs = (finding.knob for finding in (scores, loop, lost, worth))
    knob = next((knob for knob in knobs if knob), "none: nothing held the run back")
    return Verdict(headline, loop.text, scores.text, worth.text, lost.text, knob)


def lines_of(numbers: Numbers) -> list[tuple[str, str]]:
    """The verdict that a summary holds: the headline without a label, then each finding under its own."""
    told = [(name, numbers.get(f"verdict.{name}")) for name in Verdict._fields]
    return [("" if name == "headline" else name, str(text)) for name, text in told if text]


# --- did the loop wait ----------------------------------------------------------------------------


def _loop(numbers: Numbers) -> Finding:
    mode, idle = numbers.get("mode"), number(numbers, "trainer.idle_ratio")
    if mode == "data-parallel":
        return Finding("There was no selector to wait for.", "Every device trained")
    if idle is None:
        return Finding("How long the loop waited is not known.", "Speed is not known")
    if mode in ("inline", "lockstep", "fixed-lag"):
        text = (
            f"The loop waited {_percent(idle)} of its time for scores: in mode {mode} the roles take turns."
        )
        return Finding(text, f"Slower by design (mode {mode}: waited {_percent(idle)})", _take_turns(numbers))
    filled = number(numbers, "fill.share") or 0.0
    if max(idle, filled) < WAITED:
        return Finding(f"The loop did not wait ({_percent(idle)} of its time).", "Not slower")
    cause = _cause(numbers)
    parts = [f"The loop waited {_percent(idle)} of its time." if idle >= WAITED else "The loop did not wait."]
    if filled >= WAITED:
        parts.append(
            f"{_percent(filled)} of the trained examples were not selected but filled in, because the "
            "selector was late."
        )
    parts.append(cause.text)
    if idle >= WAITED:
        return Finding(" ".join(parts), f"Slower (waited {_percent(idle)}, for {cause.short})", cause.knob)
    return Finding(" ".join(parts), f"Not slower ({_percent(filled)} filled without scores)", cause.knob)


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
        return Finding(text, "the trainer's own data path", "more data.workers, or cheaper views")
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
    text = "The selector was not busy either: it was stopped, or has too little work ahead."
    return Finding(text, "a selector that idled", "a larger sync.depth")


def _too_slow(numbers: Numbers) -> Finding:
    """A selector that was busy all the time: with what?"""
    view_s, score_s, cpu = (
        number(numbers, name) or 0.0
        for name in ("selector.view_s", "selector.score_s", "selector.score_cpu_s")
    )
    if view_s > score_s:
        text = f"The selector's data loading is too slow: {view_s:.1f} s, its forward pass {score_s:.1f} s."
        return Finding(text, "the selector's data loading", "more data.workers, or cheaper views")
    if 0.0 < cpu < CROWDED * score_s:
        had = _percent(cpu / score_s)
        text = f"The selector's device is shared: its forward pass had a core for {had} of its time."
        return Finding(text, "the selector's device, which is shared", "cores of its own for the selector")
    keep = _percent(number(numbers, "keep_rate"))
    text = f"The selector's forward pass is too slow to keep only {keep} of the candidates."
    return Finding(
        text,
        "the selector's forward pass",
        "selector.precision = 'auto', a larger selection.keep, or another selector",
    )


# --- did scores say anything ----------------------------------------------------------------------


def _scores(numbers: Numbers) -> Finding:
    if not number(numbers, "selector.scored"):
        return Finding(
            "No candidate was scored: the policy needs no scores.", "nothing was selected by scores"
        )
    parts = [part for part in (_blindness(numbers), _coarseness(numbers)) if part]
    fidelity, trust = number(numbers, "fidelity.spearman"), number(numbers, "selection.trust")
    if fidelity is None:
        return Finding(" ".join([*parts, "How well they rank is not known."]), "scores were not checked")
    parts.insert(0, _ranks(fidelity))
    doubt = numbers.get("selection.doubt")
    if doubt and trust is not None and trust < DOUBTED:
        return _doubted(numbers, parts, str(doubt), 1.0 - trust)
    swing = number(numbers, "selection.swing")
    if swing is not None and swing > SWINGS:
        parts.append(f"The loop swung ({swing:.1f} times as much as by chance).")
        return Finding(
            " ".join(parts),
            "perhaps worse (the loop swung)",
            "a shorter sync.interval, or a larger selection.keep",
        )
    if fidelity < FAINT:
        return Finding(" ".join(parts), "perhaps worse (scores said nothing)", _knob_of_scores(numbers))
    return Finding(" ".join(parts), f"not worse (fidelity {fidelity:.2f})", _knob_of_precision(numbers))


def _ranks(fidelity: float) -> str:
    if fidelity < FAINT:
        return f"Scores said nothing about fresh losses (fidelity {fidelity:.2f})."
    how = "ranked like fresh losses" if fidelity >= CLEAR else "ranked a little like fresh losses"
    return f"Scores {how} (fidelity {fidelity:.2f})."


def _doubted(numbers: Numbers, parts: list[str], doubt: str, share: float) -> Finding:
    """Scores said nothing for a part of the run."""
    is_followed = number(numbers, "selection.strength") is not None
    reason = f"For {_percent(share)} of the run they could not be trusted: {doubt}."
    what = "Selection was uniform then." if is_followed else "The policy went by them all the same."
    short = f"{_percent(share)} of the run"
    return Finding(
        " ".join([*parts, reason, what]),
        f"not worse (selection was uniform for {short}, as scores said nothing)"
        if is_followed
        else f"perhaps worse (scores said nothing for {short})",
        _knob_of_scores(numbers),
    )


def _knob_of_scores(numbers: Numbers) -> str:
    if _knob_of_precision(numbers):
        return _knob_of_precision(numbers)
    staleness = number(numbers, "staleness.mean") or 0.0
    if staleness > 2.0:
        return f"a shorter sync.interval: scores were {staleness:.1f} steps old"
    return "selection.policy = 'random' costs less, until the model learns something that scores can tell"


def _knob_of_precision(numbers: Numbers) -> str:
    agreement = number(numbers, "scoring.agreement")
    return "selector.precision = 'fp32'" if agreement is not None and agreement < SAME_RANKS else ""


def _blindness(numbers: Numbers) -> str:
    """Evaluation mode against batch statistics."""
    scored, estimated = number(numbers, "selector.scored"), number(numbers, "scoring.estimated")
    if not scored or not estimated:
        return ""
    share = min(1.0, estimated / scored)
    evaluated, batch = number(numbers, "scoring.evaluation_loss"), number(numbers, "scoring.batch_loss")
    by = f" (mean loss {evaluated:.2f}, with batch statistics {batch:.2f})" if evaluated and batch else ""
    return (
        f"The model is blind in evaluation mode{by}, so its BatchNorm statistics were estimated anew for "
        f"{_percent(share)} of the candidates. Its test error is measured in evaluation mode too."
    )


def _coarseness(numbers: Numbers) -> str:
    agreement = number(numbers, "scoring.agreement")
    scored, overflowed = number(numbers, "selector.scored") or 0, number(numbers, "scoring.overflowed") or 0
    parts = []
    if agreement is not None and agreement < SAME_RANKS:
        parts.append(f"The selector's precision ranks like fp32 only to {agreement:.2f}.")
    if overflowed > WAITED * scored:
        parts.append(f"{_percent(overflowed / max(1, scored))} of them were not finite.")
    return " ".join(parts)


# --- did it help, was anything lost ---------------------------------------------------------------


def _worth(numbers: Numbers) -> Finding:
    """Only a comparison with random selection measures worth; a run alone estimates what room there is."""
    if not number(numbers, "selector.scored"):
        return Finding("Nothing was selected by scores, so there is nothing to measure.", "")
    share, error = number(numbers, "worth.ess"), number(numbers, "worth.ess_error")
    measure = "Not measured: `sbpipe worth` measures it."
    if share is None:
        return Finding(measure, "better is not measured")
    estimate = f"the effective share of the candidates is {share:.2f} ± {error or 0.0:.2f}"
    if share > ALIKE:
        hint = "candidates are nearly alike, so expect no gain"
    elif share > SOME_ROOM:
        hint = "expect a small gain at best"
    else:
        hint = "there is room for a gain"
    return Finding(f"{measure} An estimate: {estimate}; {hint}.", f"better is not measured ({hint})")


def _lost(numbers: Numbers) -> Finding:
    lost = [f"{NUMBERS[name].label} {numbers[name]:,}" for name in TROUBLE if number(numbers, name)]
    if not lost:
        return Finding("Nothing was lost.", "")
    is_selector = bool(number(numbers, "selector.lost"))
    return Finding(
        f"{', '.join(lost)}.".capitalize(), "", "look into the selector's log" if is_selector else ""
    )


def _percent(share: float | None) -> str:
    if share is None:
        return "?"
    return f"{100 * share:.1f} %" if share < 0.1 else f"{100 * share:.0f} %"
