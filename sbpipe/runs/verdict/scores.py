"""Did scores say anything, and was it safe to trust them and the labels? From a summary's numbers. Pure."""

from sbpipe.runs.numbers import number
from sbpipe.runs.verdict.finding import WAITED, Finding, Numbers, percent

CLEAR, FAINT = 0.5, 0.1
"""From a fidelity of CLEAR on scores rank like fresh losses; below FAINT they say nothing."""
SAME_RANKS = 0.9
"""Below this agreement with fp32 a precision changes the ranks."""
DOUBTED = 0.98
"""Below this mean trust, selection was uniform for a part of the run that matters."""
SWINGS = 6.0
"""Above this swing, selection over-corrects between classes."""
_NOT_WORSE = "no sign of being worse than random selection"


def scores_finding(numbers: Numbers) -> Finding:
    """Whether scores said anything."""
    if not number(numbers, "selector.scored"):
        return _unscored(numbers)
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
    label_trust = number(numbers, "selection.label_trust")
    passed_over, scored = (
        number(numbers, name) or 0.0 for name in ("selection.passed_over", "selector.scored")
    )
    # A few candidates passed over are no news.
    if passed_over > WAITED * scored:
        return _passed_over(numbers, parts)
    if numbers.get("selection.label_doubt") and label_trust is not None and label_trust < DOUBTED:
        return _mislabelled(numbers, parts, label_trust)
    return Finding(" ".join(parts), f"{_NOT_WORSE} (fidelity {fidelity:.2f})", _knob_of_precision(numbers))


def _unscored(numbers: Numbers) -> Finding:
    """A policy that needs no scores, or one whose scores no selector computed in time."""
    is_filled = (number(numbers, "fill.share") or 0.0) > 0.0
    why = "no selector was ready in time" if is_filled else "the policy needs no scores"
    knob = "a longer budget, or a selector that is ready before the trainer starts" if is_filled else ""
    if is_filled and number(numbers, "restarts.selector"):
        knob = "look into the selector's log: it died before it was ready"
    return Finding(f"No candidate was scored: {why}.", "nothing was selected by scores", knob)


def _ranks(fidelity: float) -> str:
    if fidelity < FAINT:
        return f"Scores said nothing about fresh losses (fidelity {fidelity:.2f})."
    how = "ranked like fresh losses" if fidelity >= CLEAR else "ranked a little like fresh losses"
    return f"Scores {how} (fidelity {fidelity:.2f})."


def _doubted(numbers: Numbers, parts: list[str], doubt: str, share: float) -> Finding:
    """Scores could not be trusted for a part of the run."""
    is_followed = number(numbers, "selection.strength") is not None
    reason = f"For {percent(share)} of the run they could not be trusted: {doubt}."
    what = "Selection was uniform then." if is_followed else "The policy went by them all the same."
    short = f"{percent(share)} of the run"
    return Finding(
        " ".join([*parts, reason, what]),
        f"{_NOT_WORSE} (uniform for {short}, as scores said nothing)"
        if is_followed
        else f"perhaps worse (scores said nothing for {short})",
        _knob_of_scores(numbers),
    )


def _mislabelled(numbers: Numbers, parts: list[str], trust: float) -> Finding:
    """Many labels looked wrong. A policy that respects this was no stronger than its trust in labels."""
    strength = number(numbers, "selection.strength")
    is_followed = strength is not None and strength <= trust + 1e-6
    wrong = f"at least {percent(number(numbers, 'selection.wrong_labels') or 0.0)} of the labels look wrong"
    sign = f"{wrong[0].upper()}{wrong[1:]}: the model ranks them anywhere among the classes."
    uniform = f"{percent(1.0 - trust)} uniform"
    what = f"Selection was {uniform} for that." if is_followed else "The policy seeks them all the same."
    return Finding(
        " ".join([*parts, sign, what]),
        f"{_NOT_WORSE} ({uniform}, as {wrong})" if is_followed else f"perhaps worse ({wrong})",
        "better labels: those of the examples with the highest scores first",
    )


def _passed_over(numbers: Numbers, parts: list[str]) -> Finding:
    """Wrong labels were recognised one by one and left out.

    The model memorises none of them then, so their share is an estimate and no lower bound.
    """
    passed_over = number(numbers, "selection.passed_over") or 0.0
    scored = number(numbers, "selector.scored") or 0.0
    wrong = f"about {percent(number(numbers, 'selection.wrong_labels') or 0.0)} of the labels look wrong"
    sign = f"{wrong[0].upper()}{wrong[1:]}: the model ranks them anywhere among the classes."
    of_all = percent(passed_over / max(1.0, scored))
    what = (
        f"{passed_over:,.0f} candidates ({of_all} of those scored) were passed over for that: their loss "
        "stayed above that of a guess from one epoch to the next."
    )
    return Finding(
        " ".join([*parts, sign, what]),
        f"{_NOT_WORSE} ({wrong}, and such candidates were passed over)",
        "better labels: those of the examples with the highest scores first",
    )


def _knob_of_scores(numbers: Numbers) -> str:
    if _knob_of_precision(numbers):
        return _knob_of_precision(numbers)
    staleness = number(numbers, "staleness.mean") or 0.0
    if staleness > 2.0:
        steps, published = number(numbers, "steps"), number(numbers, "sync.published")
        # One snapshot per step and one before the first: a shorter interval would not make scores newer.
        is_each = bool(steps and published and published >= steps)
        what = "a faster selector, or a smaller sync.depth" if is_each else "a shorter sync.interval"
        return f"{what}: scores were {staleness:.1f} steps old"
    return "selection.policy = 'random' costs less, until the model learns something that scores can tell"


def _knob_of_precision(numbers: Numbers) -> str:
    agreement = number(numbers, "scoring.agreement")
    return "selector.precision = 'fp32'" if agreement is not None and agreement < SAME_RANKS else ""


def _blindness(numbers: Numbers) -> str:
    """The sentence on a model that is blind in evaluation mode; "" if it is not."""
    scored, estimated = number(numbers, "selector.scored"), number(numbers, "scoring.estimated")
    if not scored or not estimated:
        return ""
    share = min(1.0, estimated / scored)
    evaluated, batch = number(numbers, "scoring.evaluation_loss"), number(numbers, "scoring.batch_loss")
    by = f" (mean loss {evaluated:.2f}, with batch statistics {batch:.2f})" if evaluated and batch else ""
    return (
        f"The model is blind in evaluation mode{by}, so its BatchNorm statistics were estimated anew for "
        f"{percent(share)} of the candidates. Its test error is measured in evaluation mode too."
    )


def _coarseness(numbers: Numbers) -> str:
    agreement = number(numbers, "scoring.agreement")
    scored, overflowed = number(numbers, "selector.scored") or 0, number(numbers, "scoring.overflowed") or 0
    parts = []
    if agreement is not None and agreement < SAME_RANKS:
        parts.append(f"The selector's precision ranks like fp32 only to {agreement:.2f}.")
    if overflowed > WAITED * scored:
        parts.append(f"{percent(overflowed / max(1, scored))} of them were not finite.")
    return " ".join(parts)
