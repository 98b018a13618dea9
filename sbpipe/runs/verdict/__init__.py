"""The verdict on a run, in words: a pure function of the numbers of its summary.

The promise is: never slower than plain training, never worse than random selection, better the faster the
second device is. The verdict says which of these the run kept, what the loop waited for, whether scores said
anything, what selection can be worth, what was lost, and the one setting that would help most. A missing
number is unknown, and the verdict then says less. It must not know how numbers were measured.
"""

from typing import NamedTuple

from sbpipe.runs.names.summary import NUMBERS, TROUBLE
from sbpipe.runs.numbers import number
from sbpipe.runs.verdict.finding import Finding, Numbers
from sbpipe.runs.verdict.loop import loop_finding
from sbpipe.runs.verdict.scores import scores_finding

__all__ = ["Verdict", "lines_of", "verdict_of"]

ALIKE, SOME_ROOM = 0.8, 0.5
"""Effective share of the candidates. In trials no policy helped above ALIKE; some helped below SOME_ROOM."""


class Verdict(NamedTuple):
    """One headline, a finding of each kind, and the setting that would help most."""

    headline: str
    loop: str
    scores: str
    worth: str
    lost: str
    knob: str

    def numbers(self) -> dict[str, str]:
        """The verdict as entries of the summary."""
        return {f"verdict.{name}": text for name, text in self._asdict().items()}


def verdict_of(numbers: Numbers) -> Verdict:
    """Judge a run by its summary."""
    loop, scores, worth, lost = (
        loop_finding(numbers),
        scores_finding(numbers),
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


def _worth(numbers: Numbers) -> Finding:
    """Only a comparison with random selection measures worth; one run can only estimate the room for it."""
    if not number(numbers, "selector.scored"):
        return Finding("Nothing was selected by scores, so there is nothing to measure.", "")
    share, error = number(numbers, "worth.ess"), number(numbers, "worth.ess_error")
    measure = "Not measured: `sbpipe worth` measures it."
    if share is None:
        return Finding(measure, "better is not measured")
    estimate = f"the effective share of the candidates is {share:.3f} ± {error or 0.0:.3f}"
    if share > ALIKE:
        hint = "no room for a gain yet"
    elif share > SOME_ROOM:
        hint = "little room for a gain"
    else:
        hint = "room for a gain"
    return Finding(
        f"{measure} An estimate of the room for it: {estimate}; {hint}.", f"better is not measured ({hint})"
    )


def _lost(numbers: Numbers) -> Finding:
    lost = [f"{NUMBERS[name].label} {numbers[name]:,}" for name in TROUBLE if number(numbers, name)]
    if not lost:
        return Finding("Nothing was lost.", "")
    text = f"{', '.join(lost)}.".capitalize()
    if number(numbers, "events.lost"):
        text += (
            " The record has holes: curves and counts made from its events miss what could not be written."
        )
    if numbers.get("checkpoint.spare"):
        text += f" The last checkpoint is in {numbers['checkpoint.spare']}."
    if number(numbers, "events.lost") or number(numbers, "checkpoint.failed"):
        return Finding(text, "", "more room on the disk of the run directory")
    is_of_selector = number(numbers, "selector.lost") or number(numbers, "restarts.selector")
    return Finding(text, "", "look into the selector's log" if is_of_selector else "")
