"""Figure 11, Stale-SB of section 5.3 and the predictors of section 3.3: scores that serve for some epochs.
Configs and claims; knows nothing of runs.
"""

from sbpipe.studies.reproduce.experiment import FASHION, Comparison, Experiment
from sbpipe.studies.reproduce.findings import COMPARABLE, Finding, Tasks, lower, sooner, target

REUSES = (2, 3, 6)
"""Epochs for which scores serve; the paper stops at 3. Each is an arm `stale-sb N`."""
PREDICTORS = ("average", "gaussian")
"""What predicts a score from those before, each an arm `NAME 3`."""
FACTOR = 1.4


def claim(tasks: Tasks) -> list[Finding]:
    """Scoring every third epoch is sooner than scoring every one, and no number of the paper's ends much
    worse.
    """
    found = []
    for task, arms in tasks.items():
        error = target(arms["full"], FACTOR)
        found.append(
            sooner(f"{task}: stale-sb 3 sooner than sb to {FACTOR:g}x", arms["stale-sb 3"], arms["sb"], error)
        )
        found += [
            lower(
                f"{task}: stale-sb {reuse} ends within {COMPARABLE:g}x of sb's error",
                arms[f"stale-sb {reuse}"],
                arms["sb"],
                factor=COMPARABLE,
            )
            for reuse in REUSES
        ]
    return found


def not_outperformed(tasks: Tasks) -> list[Finding]:
    """No predictor is much sooner than the last score, or ends much lower."""
    found = []
    for task, arms in tasks.items():
        error, stale = target(arms["full"], FACTOR), arms["stale-sb 3"]
        for name in PREDICTORS:
            arm, within = arms[f"{name} 3"], f"within {COMPARABLE:g}x of {name} 3's"
            found.append(
                sooner(
                    f"{task}: stale-sb 3 {within} time to {FACTOR:g}x", stale, arm, error, factor=COMPARABLE
                )
            )
            found.append(lower(f"{task}: stale-sb 3 ends {within} error", stale, arm, factor=COMPARABLE))
    return found


FIG11 = Experiment(
    name="fig11",
    shows="Figure 11, section 5.3",
    claim="Scoring only every 2nd or 3rd epoch (here also every 6th) speeds Selective-Backprop up and has "
    "little effect on its final error.",
    needs=FASHION,
    takes="10 minutes",
    takes_quick="3 minutes",
    how=Comparison("reuse", ("fashion_mnist",), ("embedded",), claim),
)
PREDICTED = Experiment(
    name="predicted",
    shows="section 3.3",
    claim="Predicting scores from those before, by a weighted average or a Gaussian process, does not "
    "outperform reusing the last one.",
    needs=FASHION,
    takes="10 minutes, less the runs that fig11 has made",
    takes_quick="3 minutes",
    how=Comparison("reuse", ("fashion_mnist",), ("embedded",), not_outperformed),
)
