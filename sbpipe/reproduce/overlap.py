"""The poster on Diet Selective-Backprop: do two ways of judging find the same examples easy? The claim on numbers; `lowest` computes them."""

from sbpipe.reproduce.experiment import FASHION, Experiment, Measurement, Numbers
from sbpipe.reproduce.findings import COMPARABLE, Finding, greater

SHARES = (0.1, 0.25, 0.5, 0.75)
ACROSS, WITHIN, LEAST_USED = "two architectures", "two ensembles of one", "least used by sb"
"""The pairs of judgements whose lowest rated examples are compared."""
ARRAYS = "../datasets/fashion_mnist.npz"


def key(pair: str, share: float) -> str:
    """The name of a list of overlaps, one per seed."""
    return f"{pair} {share:g}"


def measure(quick: bool) -> Numbers:
    """The overlap of every pair at every share."""
    from sbpipe.reproduce.lowest import embedded, from_arrays, overlaps

    return overlaps(SHARES, embedded() if quick else from_arrays(ARRAYS))


def claim(numbers: Numbers) -> list[Finding]:
    """Figures (c) and (d): more than chance at every share; architectures about as much as ensembles of one of them."""
    return [finding for share in SHARES for finding in _of_share(numbers, share)]


def _of_share(numbers: Numbers, share: float) -> list[Finding]:
    across, within, least_used = (numbers[key(pair, share)] for pair in (ACROSS, WITHIN, LEAST_USED))
    lowest = f"the {100 * share:g}% with the lowest EL2N"
    return [
        greater(f"{lowest}: common to small_cnn and small_resnet, against chance", across, [share] * len(across), of="seeds"),
        greater(
            f"{lowest}: common to small_cnn and small_resnet, against 1/1.1 of what two ensembles of small_cnn share (our control)",
            across,
            [value / COMPARABLE for value in within],
            of="seeds",
        ),
        greater(f"{lowest}: among as many least used by sb, against chance", least_used, [share] * len(least_used), of="seeds"),
    ]


OVERLAP = Experiment(
    name="overlap",
    shows="Diet Selective-Backprop, figures (c) and (d)",
    claim="EL2N scoring can be transferable across CNN architectures; images that are least used in SB often have a low score in EL2N.",
    needs=FASHION,
    takes="8 minutes",
    takes_quick="2 minutes",
    how=Measurement(measure, claim, ARRAYS),
)
