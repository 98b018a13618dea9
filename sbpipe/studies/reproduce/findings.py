"""Judges numbers: a claim held, did not hold, or is not decided. Pure; knows no experiment.

Runs are paired by seed. Every pair gives a margin, positive if it supports the claim. A claim holds if the
mean of the margins is above their standard deviation, does not hold if it is below minus that, and is not
decided in between. `sbpipe compare` uses the same rule to call an error lower or higher.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sbpipe.runs.curve import Point, time_to_target
from sbpipe.runs.study.spread import geometric_mean_of, mean_of, paired, sd_of
from sbpipe.show.report.table import NOTHING, percent_pm, seconds_pm

HELD, FAILED, OPEN = "held", "did not hold", "not decided"
COMPARABLE = 1.1
"""Errors count as comparable if their ratio is at most this: the strictest target of the paper's Table 1."""

Runs = Mapping[int | None, Sequence[Point]]
"""The curves of one arm, by seed."""
Arms = Mapping[str, Runs]
Tasks = Mapping[str, Arms]


@dataclass(frozen=True)
class Finding:
    """One part of a claim: what was asked, what was measured with n and spread, and the verdict."""

    what: str
    measured: str
    verdict: str


def judged(margins: Sequence[float]) -> str:
    """The verdict on margins; positive ones support the claim."""
    mean, sd = mean_of(margins), sd_of(margins)
    if mean is None:
        return f"{OPEN}: nothing was measured"
    if sd is None:
        return f"{OPEN}: one run has no spread"
    if abs(mean) <= sd:
        return f"{OPEN}: spreads overlap"
    return HELD if mean > 0 else FAILED


def overall(findings: Sequence[Finding]) -> str:
    """The verdict on a whole claim: it fails with one failed part, and is open with one undecided part."""
    verdicts = [finding.verdict for finding in findings]
    if not verdicts:
        return f"{OPEN}: nothing was measured"
    failed, held = verdicts.count(FAILED), verdicts.count(HELD)
    if failed:
        return f"{FAILED}: {held} of {len(verdicts)} parts held, {failed} did not"
    return (
        HELD
        if held == len(verdicts)
        else f"{OPEN}: {held} of {len(verdicts)} parts held, the others are not decided"
    )


def finals(runs: Runs) -> dict[int | None, float]:
    """The last test error of each seed."""
    return {seed: curve[-1].error for seed, curve in runs.items() if curve}


def times(runs: Runs, error: float) -> dict[int | None, float]:
    """The seconds until an error was reached, for the seeds that reached it."""
    reached = {seed: time_to_target(curve, error) for seed, curve in runs.items()}
    return {seed: time_s for seed, time_s in reached.items() if time_s is not None}


def target(baseline: Runs, factor: float) -> float | None:
    """A target error: a factor of the baseline's mean final error; None without a baseline."""
    mean = mean_of(list(finals(baseline).values()))
    return None if mean is None else factor * mean


def lower(what: str, ours: Runs, theirs: Runs, *, factor: float = 1.0) -> Finding:
    """Whether the final error is below `factor` times the other's; a factor above 1 means comparable."""
    both = paired(finals(ours), finals(theirs))
    margins = [factor * other - own for own, other in both]
    return Finding(what, _errors_said(both), judged(margins))


def sooner(what: str, ours: Runs, theirs: Runs, error: float | None, *, factor: float = 1.0) -> Finding:
    """Whether an error is reached within `factor` times the other's time, by the ratio of times."""
    if error is None:
        return Finding(what, "no run of the baseline finished", f"{OPEN}: nothing was measured")
    own, other = times(ours, error), times(theirs, error)
    both = paired(own, other)
    counts = (
        f"error {100 * error:.2f}% reached by {len(own)} of {len(ours)} against {len(other)} of {len(theirs)}"
    )
    # There is no pair to judge, but only the other side reached it: the claim fails.
    if not own and other:
        return Finding(what, counts, FAILED if len(ours) > 1 else judged([-1.0] * len(ours)))
    speedups = [theirs_s / ours_s for ours_s, theirs_s in both]
    speed = geometric_mean_of(speedups)
    if speed is None or len(both) < max(len(ours), len(theirs)):
        return Finding(what, counts, f"{OPEN}: not all runs reached it")
    sd = sd_of(speedups)
    spread = "" if sd is None else f" ±{sd:.2f}"
    said = (
        f"{seconds_pm(*_mean_sd([a for a, _ in both]))} against {seconds_pm(*_mean_sd([b for _, b in both]))}"
    )
    words = f"to {100 * error:.2f}% in {said}: {speed:.2f}x{spread}, n = {len(both)}"
    # Logarithms, so that twice as fast and half as fast have equal weight.
    return Finding(what, words, judged([math.log(factor * ratio) for ratio in speedups]))


def sooner_than(task: str, arms: Arms, ours: str, theirs: str, factor: float) -> Finding:
    """Whether one arm reaches `factor` times the mean final error of `full` sooner than another."""
    what = f"{task}: {ours} sooner than {theirs} to {factor:g}x"
    return sooner(what, arms[ours], arms[theirs], target(arms["full"], factor))


def greater(
    what: str, ours: Sequence[float], theirs: Sequence[float], *, form: str = ".3f", of: str = "pairs"
) -> Finding:
    """Whether paired numbers are greater than the others."""
    margins = [own - other for own, other in zip(ours, theirs, strict=True)]
    return Finding(what, _numbers_said(ours, theirs, form, of), judged(margins))


def less(
    what: str, ours: Sequence[float], theirs: Sequence[float], *, form: str = ".3f", of: str = "pairs"
) -> Finding:
    """Whether paired numbers are less than the others."""
    return Finding(what, _numbers_said(ours, theirs, form, of), greater(what, theirs, ours).verdict)


def between(what: str, values: Sequence[float], low: float, high: float, *, of: str = "rounds") -> Finding:
    """Whether mean ± standard deviation lies within two bounds; wholly outside, the claim fails."""
    mean, sd = mean_of(values), sd_of(values)
    words = f"{number_pm(values, '.2f')}, n = {len(values)} {of}"
    if mean is None or sd is None:
        return Finding(what, words, judged(values))
    if low <= mean - sd and mean + sd <= high:
        return Finding(what, words, HELD)
    is_outside = mean + sd < low or mean - sd > high
    return Finding(what, words, FAILED if is_outside else f"{OPEN}: spreads overlap")


def number_pm(values: Sequence[float], form: str) -> str:
    """Numbers as mean and spread."""
    mean, sd = _mean_sd(values)
    spread = "" if sd is None else f" ±{format(sd, form.removeprefix('+'))}"
    return NOTHING if mean is None else f"{format(mean, form)}{spread}"


def _numbers_said(ours: Sequence[float], theirs: Sequence[float], form: str, of: str) -> str:
    differences = [own - other for own, other in zip(ours, theirs, strict=True)]
    both = f"{number_pm(ours, form)} against {number_pm(theirs, form)}"
    return f"{both}, difference {number_pm(differences, '+' + form)}, n = {len(differences)} {of}"


def _errors_said(both: Sequence[tuple[float, float]]) -> str:
    differences = [100 * (own - other) for own, other in both]
    ours, theirs = (
        percent_pm(*_mean_sd([own for own, _ in both])),
        percent_pm(*_mean_sd([other for _, other in both])),
    )
    return f"{ours} against {theirs}, difference {number_pm(differences, '+.2f')} points, n = {len(both)}"


def _mean_sd(values: Sequence[float]) -> tuple[float | None, float | None]:
    return mean_of(values), sd_of(values)
