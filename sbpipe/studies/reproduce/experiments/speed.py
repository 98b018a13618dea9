"""Time to a target error: Table 1, Figure 17 (second schedule), section 5.4 (static rate), Figure 14.

All four are claims on configs/cpu/speed.toml, where a task is a data set under one schedule; they share runs.
"""

from collections.abc import Sequence

from sbpipe.runs.study.pareto import pareto_shares
from sbpipe.runs.study.targets import FACTORS
from sbpipe.studies.reproduce.experiment import Comparison
from sbpipe.studies.reproduce.findings import Arms, Finding, Tasks, greater, lower, sooner_than

STRATEGIES = ("full", "sb", "kath18")
ACCELERATED = " accelerated"
"""The ending of the name of a task under the second schedule."""


def time_to_target(tasks: Tasks) -> list[Finding]:
    """Table 1: `sb` against `full` at every target, and against `kath18` at the middle one."""
    return [finding for task, arms in tasks.items() for finding in _of_task(task, arms)]


def trend(tasks: Tasks) -> list[Finding]:
    """Figure 17: under another schedule `sb` is still sooner than `full` at every target."""
    return [finding for task, arms in tasks.items() for finding in _against_full(task, arms)]


def pareto(tasks: Tasks) -> list[Finding]:
    """Figure 14: most Pareto-optimal points over both schedules are `sb`'s; one share per seed."""
    found = []
    for data in dict.fromkeys(task.removesuffix(ACCELERATED) for task in tasks):
        both = [arms for task, arms in tasks.items() if task.removesuffix(ACCELERATED) == data]
        shares = [_shares(both, seed) for seed in _seeds(both)]
        ours = [share["sb"] for share in shares]
        others = [max(share["full"], share["kath18"]) for share in shares]
        found.append(
            greater(f"{data}: share of sb against the next strategy's", ours, others, form=".2f", of="seeds")
        )
    return found


def _of_task(task: str, arms: Arms) -> list[Finding]:
    return [*_against_full(task, arms), sooner_than(task, arms, "sb", "kath18", FACTORS[1])]


def _against_full(task: str, arms: Arms) -> list[Finding]:
    return [sooner_than(task, arms, "sb", "full", factor) for factor in FACTORS]


def same_trends(tasks: Tasks) -> list[Finding]:
    """Section 5.4, static rate: the same trends, by time at every target and by the final error."""
    finals = [
        lower(f"{task}: final error of sb at most 1.1x that of full", arms["sb"], arms["full"], factor=1.1)
        for task, arms in tasks.items()
    ]
    return [*trend(tasks), *finals]


def _seeds(both: Sequence[Arms]) -> set[int | None]:
    """Seeds that every strategy finished in both tasks: shares from fewer curves would not be comparable."""
    known = [set(arms[name]) for arms in both for name in STRATEGIES]
    return known[0].intersection(*known) if known else set()


def _shares(both: Sequence[Arms], seed: int | None) -> dict[str, float]:
    return pareto_shares([(name, arms[name][seed]) for arms in both for name in STRATEGIES])


TABLE1 = Comparison("speed", ("fashion_mnist", "cifar10"), ("embedded",), time_to_target)
FIG14 = Comparison("speed", ("cifar10", "cifar10 accelerated"), ("embedded", "embedded accelerated"), pareto)
FIG17 = Comparison(
    "speed", ("fashion_mnist accelerated", "cifar10 accelerated"), ("embedded accelerated",), trend
)
STATIC = Comparison("speed", ("fashion_mnist static", "cifar10 static"), ("embedded static",), same_trends)
