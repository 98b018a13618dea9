"""Time to a target error: Table 1, its second schedule (Figure 17), a static rate (section 5.4) and the
Pareto frontier (Figure 14).

All four are claims on one file of comparisons, configs/cpu/speed.toml: a task is a data set under one
schedule, so runs are shared.
"""

from collections.abc import Sequence

from sbpipe.studies.compare.analysis import pareto_shares
from sbpipe.studies.plan import TARGETS
from sbpipe.studies.reproduce.experiment import CIFAR, REAL, Comparison, Experiment
from sbpipe.studies.reproduce.findings import Arms, Finding, Tasks, greater, lower, sooner, target

STRATEGIES = ("full", "sb", "kath18")
ACCELERATED = " accelerated"
"""What the name of a task under the second schedule ends with."""


def time_to_target(tasks: Tasks) -> list[Finding]:
    """Table 1: `sb` against `full` at every target, against `kath18` at the middle one, and its final
    error.
    """
    return [finding for task, arms in tasks.items() for finding in _of_task(task, arms)]


def trend(tasks: Tasks) -> list[Finding]:
    """Figure 17: under another schedule `sb` is still sooner than `full` at every target."""
    return [finding for task, arms in tasks.items() for finding in _against_full(task, arms)]


def pareto(tasks: Tasks) -> list[Finding]:
    """Figure 14: of the points that nobody beats in time and error, over both schedules, most are `sb`'s; one
    share per seed.
    """
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
    middle = target(arms["full"], TARGETS[1])
    return [
        *_against_full(task, arms),
        sooner(f"{task}: sb sooner than kath18 to {TARGETS[1]:g}x", arms["sb"], arms["kath18"], middle),
    ]


def _against_full(task: str, arms: Arms) -> list[Finding]:
    return [
        sooner(
            f"{task}: sb sooner than full to {factor:g}x",
            arms["sb"],
            arms["full"],
            target(arms["full"], factor),
        )
        for factor in TARGETS
    ]


def same_trends(tasks: Tasks) -> list[Finding]:
    """Section 5.4, static rate: the same trends, by time at every target and by the final error."""
    finals = [
        lower(f"{task}: final error of sb at most 1.1x that of full", arms["sb"], arms["full"], factor=1.1)
        for task, arms in tasks.items()
    ]
    return [*trend(tasks), *finals]


def _seeds(both: Sequence[Arms]) -> list[int]:
    """Seeds that every strategy finished everywhere: a share of fewer curves would not be comparable."""
    known = [set(arms[name]) for arms in both for name in STRATEGIES]
    return sorted(set.intersection(*known)) if known else []


def _shares(both: Sequence[Arms], seed: int) -> dict[str, float]:
    return pareto_shares([(name, arms[name][seed]) for arms in both for name in STRATEGIES])


TABLE1 = Experiment(
    name="table1",
    shows="Table 1, Figures 6 and 7",
    claim="Selective-Backprop reaches 1.1, 1.2 and 1.4 times Traditional's final error sooner than "
    "Traditional, and sooner than Kath18.",
    needs=REAL,
    takes="12 minutes",
    takes_quick="1 minute",
    how=Comparison("speed", ("fashion_mnist", "cifar10"), ("embedded",), time_to_target),
)
FIG14 = Experiment(
    name="fig14",
    shows="Figure 14",
    claim="Over both learning-rate schedules, Selective-Backprop provides most of the Pareto-optimal points "
    "of time and error.",
    needs=CIFAR,
    takes="14 minutes, less the runs that table1 and fig17 have made",
    takes_quick="2 minutes",
    how=Comparison("speed", ("cifar10", "cifar10 accelerated"), ("embedded", "embedded accelerated"), pareto),
)
FIG17 = Experiment(
    name="fig17",
    shows="Figure 17",
    claim="Under the accelerated learning-rate schedule Selective-Backprop reaches the target errors sooner "
    "than Traditional, too.",
    needs=REAL,
    takes="14 minutes",
    takes_quick="1 minute",
    how=Comparison(
        "speed", ("fashion_mnist accelerated", "cifar10 accelerated"), ("embedded accelerated",), trend
    ),
)
STATIC = Experiment(
    name="static",
    shows="section 5.4",
    claim="With a learning rate that never decays the trends are the same: sooner at the targets, at a "
    "comparable final error.",
    needs=REAL,
    takes="13 minutes",
    takes_quick="1 minute",
    how=Comparison("speed", ("fashion_mnist static", "cifar10 static"), ("embedded static",), same_trends),
)
