"""Figure 12: wrong labels, 1, 10 and 20 % of them. Judges curves; knows nothing of runs."""

from collections.abc import Mapping

from sbpipe.runs.study.spread import BySeed, paired
from sbpipe.studies.reproduce.experiment import Comparison
from sbpipe.studies.reproduce.findings import (
    COMPARABLE,
    Arms,
    Finding,
    Runs,
    Tasks,
    finals,
    greater,
    lower,
    sooner_than,
)

MODEST, MUCH = ("1%", "10%"), "20%"
FACTOR = 1.4


def claim(tasks: Tasks) -> list[Finding]:
    """By the share of wrong labels in a task's name: sooner, comparable while modest, worse at 20 %."""
    shares = {task.rpartition(" ")[2]: arms for task, arms in tasks.items()}
    return [
        *(finding for share, arms in shares.items() for finding in _of_share(share, arms)),
        *_harm(shares),
    ]


def _of_share(share: str, arms: Arms) -> list[Finding]:
    sb, full, what = arms["sb"], arms["full"], f"{share} wrong"
    if share in MODEST:
        end = lower(f"{what}: final error of sb at most 1.1x that of full", sb, full, factor=COMPARABLE)
    else:
        end = lower(f"{what}: sb ends with a higher error than full", full, sb)
    return [
        sooner_than(what, arms, "sb", "full", FACTOR),
        end,
        lower(f"{what}: sb ends with a lower error than random (our control)", sb, arms["random"]),
        lower(f"{what}: sb guarded (ours) ends with a lower error than sb", arms["sb guarded"], sb),
    ]


def _harm(shares: Mapping[str, Arms]) -> list[Finding]:
    """Whether the step from 1 to 20 % raises the error of `sb` by more than that of `full`, seed by seed."""
    if not {MODEST[0], MUCH} <= shares.keys():
        return []
    ours, theirs = (_rise(shares[MODEST[0]][arm], shares[MUCH][arm]) for arm in ("sb", "full"))
    pairs = paired(ours, theirs)
    what = "from 1% to 20% wrong the error of sb rises by more points than that of full"
    return [greater(what, [own for own, _ in pairs], [other for _, other in pairs], form=".2f", of="seeds")]


def _rise(before: Runs, after: Runs) -> BySeed:
    first, last = finals(before), finals(after)
    return {seed: 100 * (last[seed] - error) for seed, error in first.items() if seed in last}


FIG12 = Comparison(
    "noise",
    ("fashion_mnist 1%", "fashion_mnist 10%", "fashion_mnist 20%"),
    ("quick 1%", "quick 10%", "quick 20%"),
    claim,
)
