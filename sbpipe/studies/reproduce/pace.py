"""The time of an epoch, from the curves of runs. Pure; knows no experiment."""

from collections.abc import Mapping, Sequence

from sbpipe.runs.study.spread import BySeed, paired
from sbpipe.studies.reproduce.findings import Finding, Runs, less

MS = 1e3


def epoch_ms(runs: Runs, left: float = 1.0) -> BySeed:
    """Milliseconds of an epoch per example of the whole data set; a share `left` of it remains after pruning.

    Measured between the first and the last evaluation, so that start-up does not count.
    """
    spans = {seed: (curve[0], curve[-1]) for seed, curve in runs.items() if len(curve) > 1}
    return {
        seed: left * MS * (last.time_s - first.time_s) / (last.candidates - first.candidates)
        for seed, (first, last) in spans.items()
        if last.candidates > first.candidates
    }


def shorter_in_turn(
    task: str, times: Mapping[str, BySeed], order: Sequence[tuple[str, str]]
) -> list[Finding]:
    """For each pair of arms, whether an epoch of the first takes less time than one of the second."""
    return [
        _shorter(f"{task}: {ours} takes less time per epoch than {theirs}", times[ours], times[theirs])
        for ours, theirs in order
    ]


def _shorter(what: str, ours: BySeed, theirs: BySeed) -> Finding:
    pairs = paired(ours, theirs)
    own, other = [own for own, _ in pairs], [other for _, other in pairs]
    return less(what, own, other, of="pairs, in ms per example and epoch")
