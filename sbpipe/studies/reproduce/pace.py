"""How long an epoch takes, from the curves of runs. Pure; knows neither experiments nor how the runs were
made.
"""

from sbpipe.studies.reproduce.findings import BySeed, Finding, Runs, less

MS = 1e3


def epoch_ms(runs: Runs, left: float = 1.0) -> dict[int, float]:
    """Milliseconds of an epoch per example of the data set, of which a share `left` is there to be trained
    on.

    Counted between the first and the last evaluation, so that start-up does not count.
    """
    spans = {seed: (curve[0], curve[-1]) for seed, curve in runs.items() if len(curve) > 1}
    return {
        seed: left * MS * (last.time_s - first.time_s) / (last.candidates - first.candidates)
        for seed, (first, last) in spans.items()
        if last.candidates > first.candidates
    }


def shorter(what: str, ours: BySeed, theirs: BySeed) -> Finding:
    """Whether an epoch takes less time, seed by seed."""
    seeds = sorted(ours.keys() & theirs.keys())
    return less(
        what,
        [ours[seed] for seed in seeds],
        [theirs[seed] for seed in seeds],
        of="pairs, in ms per example and epoch",
    )
