"""Figure 5: is the gradient of the highest-loss examples like that of the whole batch? See `gradients`."""

from sbpipe.studies.reproduce.experiment import Measurement, Numbers
from sbpipe.studies.reproduce.findings import Finding, greater

SHARES = (0.1, 0.25, 0.5)
MEASURES = ("cosine", "sign")
"""Cosine of the angle between two gradients, and the share of components of the same sign."""
_WORDS = {"cosine": "cosine", "sign": "share of equal signs"}
SAME_SIGN = 0.8
"""The paper finds at least this at the smallest share."""


def key(measure: str, share: float, chosen: str) -> str:
    """The name of a list of numbers, one per batch; `chosen` is high (loss) or random."""
    return f"{measure} {share:g} {chosen}"


def measure(quick: bool) -> Numbers:
    """Both measures at every share, for subsamples of highest loss and at random."""
    from sbpipe.studies.reproduce.gradients import similarities

    return similarities(SHARES, seeds=1 if quick else 3, batches=24, epochs=1.5 if quick else 4.0)


def claim(numbers: Numbers) -> list[Finding]:
    """By both measures high loss is closer to the whole than random; at 10 %, 80 % of the signs agree."""
    found = [
        greater(
            f"{_WORDS[measure]} with the whole gradient, {100 * share:g}% of highest loss against as many at "
            "random",
            numbers[key(measure, share, "high")],
            numbers[key(measure, share, "random")],
            of="batches",
        )
        for measure in MEASURES
        for share in SHARES
    ]
    signs = numbers[key("sign", SHARES[0], "high")]
    what = f"more than 80% of the signs agree at {100 * SHARES[0]:g}% of highest loss"
    return [*found, greater(what, signs, [SAME_SIGN] * len(signs), of="batches")]


FIG5 = Measurement(measure, claim)
