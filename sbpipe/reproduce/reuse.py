"""Figure 11, and Stale-SB of section 5.3: scores that are remembered for some epochs. Configs and claim; knows nothing of runs."""

from sbpipe.reproduce.experiment import NOTHING, Comparison, Experiment
from sbpipe.reproduce.findings import Finding, Tasks, lower, sooner, target

REUSES = (2, 3, 6)
"""Epochs for which scores serve; the paper stops at 3. Each is an arm `stale-sb N`."""
FACTOR, COMPARABLE = 1.4, 1.1


def claim(tasks: Tasks) -> list[Finding]:
    """Scoring every third epoch is sooner than scoring every one, and no number of the paper's ends much worse."""
    found = []
    for task, arms in tasks.items():
        error = target(arms["full"], FACTOR)
        found.append(sooner(f"{task}: stale-sb 3 sooner than sb to {FACTOR:g}x", arms["stale-sb 3"], arms["sb"], error))
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


FIG11 = Experiment(
    name="fig11",
    shows="Figure 11, section 5.3",
    claim="Scoring only every 2nd or 3rd epoch (here also every 6th) speeds Selective-Backprop up and has little effect on its final error.",
    needs=NOTHING,
    takes="6 minutes",
    takes_quick="2 minutes",
    how=Comparison("reuse", ("embedded",), ("embedded-quick",), claim),
)
