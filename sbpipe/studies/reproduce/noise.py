"""Figure 12: wrong labels, 1, 10 and 20 % of them. Configs and claim; knows nothing of runs."""

from collections.abc import Mapping

from sbpipe.studies.reproduce.experiment import FASHION, Comparison, Experiment
from sbpipe.studies.reproduce.findings import (
    COMPARABLE,
    Arms,
    Finding,
    Runs,
    Tasks,
    finals,
    greater,
    lower,
    sooner,
    target,
)

MODEST, MUCH = ("1%", "10%"), "20%"
FACTOR = 1.4


def claim(tasks: Tasks) -> list[Finding]:
    """By the share of wrong labels that a task's name ends with: sooner everywhere, comparable while modest,
    worse at 20 %.
    """
    found = []
    for share, arms in _by_share(tasks).items():
        sb, full = arms["sb"], arms["full"]
        found.append(
            sooner(f"{share} wrong: sb sooner than full to {FACTOR:g}x", sb, full, target(full, FACTOR))
        )
        if share in MODEST:
            found.append(
                lower(
                    f"{share} wrong: final error of sb at most 1.1x that of full", sb, full, factor=COMPARABLE
                )
            )
        else:
            found.append(lower(f"{share} wrong: sb ends with a higher error than full", full, sb))
        found.append(
            lower(f"{share} wrong: sb ends with a lower error than random (our control)", sb, arms["random"])
        )
        found.append(
            lower(f"{share} wrong: sb guarded (ours) ends with a lower error than sb", arms["sb guarded"], sb)
        )
    return [*found, *_harm(_by_share(tasks))]


def _harm(tasks: Mapping[str, Arms]) -> list[Finding]:
    """Whether the step from 1 to 20 % raises the error of `sb` by more than that of `full`, seed by seed."""
    if not {MODEST[0], MUCH} <= tasks.keys():
        return []
    ours, theirs = (_rise(tasks[MODEST[0]][arm], tasks[MUCH][arm]) for arm in ("sb", "full"))
    seeds = sorted(ours.keys() & theirs.keys())
    what = "from 1% to 20% wrong the error of sb rises by more points than that of full"
    return [
        greater(
            what, [ours[seed] for seed in seeds], [theirs[seed] for seed in seeds], form=".2f", of="seeds"
        )
    ]


def _rise(before: Runs, after: Runs) -> dict[int, float]:
    first, last = finals(before), finals(after)
    return {seed: 100 * (last[seed] - first[seed]) for seed in first.keys() & last.keys()}


def _by_share(tasks: Tasks) -> dict[str, Arms]:
    return {task.rpartition(" ")[2]: arms for task, arms in tasks.items()}


FIG12 = Experiment(
    name="fig12",
    shows="Figure 12",
    claim="Selective-Backprop still speeds training up with 1, 10 and 20 % wrong labels; its final error is "
    "comparable up to 10 %, higher at 20 %.",
    needs=FASHION,
    takes="21 minutes",
    takes_quick="2 minutes",
    how=Comparison(
        "noise",
        ("fashion_mnist 1%", "fashion_mnist 10%", "fashion_mnist 20%"),
        ("quick 1%", "quick 10%", "quick 20%"),
        claim,
    ),
)
