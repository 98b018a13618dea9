"""Scores that are reused for some epochs: Figure 11, section 5.3 (Stale-SB), section 3.3 (predictors)."""

from sbpipe.studies.reproduce.experiment import Comparison
from sbpipe.studies.reproduce.findings import (
    COMPARABLE,
    Arms,
    Finding,
    Tasks,
    lower,
    sooner,
    sooner_than,
    target,
)

REUSES = (2, 3, 6)
"""Epochs for which scores are reused; the paper stops at 3. Each is an arm `stale-sb N`."""
PREDICTORS = ("average", "gaussian")
"""The predictors of a score from earlier ones, each an arm `NAME 3`."""
FACTOR = 1.4


def claim(tasks: Tasks) -> list[Finding]:
    """Scoring every third epoch is sooner than scoring every one, and no number of epochs ends much worse."""
    return [finding for task, arms in tasks.items() for finding in _of_reuse(task, arms)]


def not_outperformed(tasks: Tasks) -> list[Finding]:
    """No predictor is much sooner than the last score, or ends much lower."""
    return [
        finding
        for task, arms in tasks.items()
        for name in PREDICTORS
        for finding in _of_predictor(task, arms, f"{name} 3")
    ]


def _of_reuse(task: str, arms: Arms) -> list[Finding]:
    within = f"ends within {COMPARABLE:g}x of sb's error"
    names = [f"stale-sb {epochs}" for epochs in REUSES]
    return [
        sooner_than(task, arms, "stale-sb 3", "sb", FACTOR),
        *(lower(f"{task}: {name} {within}", arms[name], arms["sb"], factor=COMPARABLE) for name in names),
    ]


def _of_predictor(task: str, arms: Arms, name: str) -> list[Finding]:
    stale, predicted, within = arms["stale-sb 3"], arms[name], f"within {COMPARABLE:g}x of {name}'s"
    error, what = target(arms["full"], FACTOR), f"{task}: stale-sb 3 {within} time to {FACTOR:g}x"
    return [
        sooner(what, stale, predicted, error, factor=COMPARABLE),
        lower(f"{task}: stale-sb 3 ends {within} error", stale, predicted, factor=COMPARABLE),
    ]


FIG11 = Comparison("reuse", ("fashion_mnist",), ("embedded",), claim)
PREDICTED = Comparison("reuse", ("fashion_mnist",), ("embedded",), not_outperformed)
