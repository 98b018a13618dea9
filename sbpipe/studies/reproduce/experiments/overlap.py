"""The Diet-SB poster: do two ratings find the same examples easy? `lowest_rated` computes the overlap."""

from dataclasses import replace

from sbpipe.studies.reproduce.experiment import Measurement, Numbers
from sbpipe.studies.reproduce.findings import Finding, greater, number_pm

SHARES = (0.1, 0.25, 0.5, 0.75)
ACROSS, WITHIN, LEAST_USED = "two architectures", "two ensembles of one", "least used by sb"
"""The pairs of ratings whose lowest rated examples are compared."""
ARRAYS = "../datasets/fashion_mnist.npz"


def key(pair: str, share: float) -> str:
    """The name of a list of overlaps, one per seed."""
    return f"{pair} {share:g}"


def measure(quick: bool) -> Numbers:
    """The overlap of every pair at every share."""
    from sbpipe.studies.reproduce.lowest_rated import embedded, from_arrays, overlaps

    return overlaps(SHARES, embedded() if quick else from_arrays(ARRAYS))


def claim(numbers: Numbers) -> list[Finding]:
    """Figures (c) and (d): more than chance at every share; two ensembles of one net are the control."""
    return [finding for share in SHARES for finding in _of_share(numbers, share)]


def _of_share(numbers: Numbers, share: float) -> list[Finding]:
    across, within, least_used = (numbers[key(pair, share)] for pair in (ACROSS, WITHIN, LEAST_USED))
    lowest, chance = f"the {100 * share:g}% with the lowest EL2N", [share] * len(across)
    common = greater(
        f"{lowest}: common to small_cnn and small_resnet, against chance", across, chance, of="seeds"
    )
    control = f"two ensembles of small_cnn have {number_pm(within, '.3f')} in common"
    return [
        replace(common, measured=f"{common.measured}; {control}"),
        greater(f"{lowest}: among as many least used by sb, against chance", least_used, chance, of="seeds"),
    ]


OVERLAP = Measurement(measure, claim, ARRAYS)
