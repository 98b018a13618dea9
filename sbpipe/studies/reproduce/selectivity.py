"""Figure 13: how few candidates may be kept. Configs and claim; knows nothing of runs."""

from sbpipe.studies.reproduce.experiment import CIFAR, Comparison, Experiment
from sbpipe.studies.reproduce.findings import Finding, Tasks, lower, sooner, target

KEEPS = (0.2, 0.33, 0.5, 0.65)
"""The range in which the paper finds a speed-up; each is an arm `sb KEEP`."""
FACTOR = 1.4


def claim(tasks: Tasks) -> list[Finding]:
    """Every share of the range is sooner than `full`; the smallest is sooner than the largest, and ends
    worse.
    """
    found = []
    for task, arms in tasks.items():
        error = target(arms["full"], FACTOR)
        few, many = arms[f"sb {KEEPS[0]:g}"], arms[f"sb {KEEPS[-1]:g}"]
        found += [
            sooner(
                f"{task}: sb {keep:g} sooner than full to {FACTOR:g}x",
                arms[f"sb {keep:g}"],
                arms["full"],
                error,
            )
            for keep in KEEPS
        ]
        found.append(
            sooner(f"{task}: sb {KEEPS[0]:g} sooner than sb {KEEPS[-1]:g} to {FACTOR:g}x", few, many, error)
        )
        found.append(
            lower(f"{task}: sb {KEEPS[-1]:g} ends with a lower error than sb {KEEPS[0]:g}", many, few)
        )
    return found


FIG13 = Experiment(
    name="fig13",
    shows="Figure 13",
    claim="Keeping 20 to 65 % of the candidates speeds training up; keeping fewer speeds it up more and ends "
    "with a higher error.",
    needs=CIFAR,
    takes="13 minutes",
    takes_quick="2 minutes",
    how=Comparison("selectivity", ("cifar10",), ("embedded",), claim),
)
