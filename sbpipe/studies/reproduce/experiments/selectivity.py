"""Figure 13: how few candidates may be kept. Judges curves; knows nothing of runs."""

from sbpipe.studies.reproduce.experiment import Comparison
from sbpipe.studies.reproduce.findings import Arms, Finding, Tasks, lower, sooner_than

ARMS = ("sb 0.2", "sb 0.33", "sb 0.5", "sb 0.65")
"""The arms by keep rate: the range in which the paper finds a speed-up."""
FACTOR = 1.4


def claim(tasks: Tasks) -> list[Finding]:
    """Every share is sooner than `full`; the smallest is sooner than the largest, and ends worse."""
    return [finding for task, arms in tasks.items() for finding in _of_task(task, arms)]


def _of_task(task: str, arms: Arms) -> list[Finding]:
    few, many = ARMS[0], ARMS[-1]
    return [
        *(sooner_than(task, arms, arm, "full", FACTOR) for arm in ARMS),
        sooner_than(task, arms, few, many, FACTOR),
        lower(f"{task}: {many} ends with a lower error than {few}", arms[many], arms[few]),
    ]


FIG13 = Comparison("selectivity", ("cifar10",), ("embedded",), claim)
