"""The poster on Diet Selective-Backprop: dropping at random against dropping by loss. Configs and claim;
knows nothing of runs.
"""

from sbpipe.studies.reproduce.experiment import FASHION, Comparison, Experiment
from sbpipe.studies.reproduce.findings import COMPARABLE, Arms, Finding, Tasks, lower
from sbpipe.studies.reproduce.pace import epoch_ms, shorter


def claim(tasks: Tasks) -> list[Finding]:
    """Accuracy at 50, 75 and 90 % dropped, and seconds per epoch of candidates. An arm is named by its policy
    and what it keeps.
    """
    return [
        finding for task, arms in tasks.items() for finding in [*_accuracy(task, arms), *_runtime(task, arms)]
    ]


def _accuracy(task: str, arms: Arms) -> list[Finding]:
    half = lower(
        f"{task}: random at most 1.1x the error of sb, half dropped",
        arms["random 0.5"],
        arms["sb 0.5"],
        factor=COMPARABLE,
    )
    quarter = lower(
        f"{task}: random at most 1.1x the error of full, three quarters dropped",
        arms["random 0.25"],
        arms["full"],
        factor=COMPARABLE,
    )
    return [
        half,
        quarter,
        lower(f"{task}: sb below random, nine tenths dropped", arms["sb 0.1"], arms["random 0.1"]),
    ]


def _runtime(task: str, arms: Arms) -> list[Finding]:
    order = (("sb 0.5", "full"), ("random 0.5", "sb 0.5"), ("random 0.25", "random 0.5"))
    return [
        shorter(
            f"{task}: {ours} takes less time per epoch than {theirs}",
            epoch_ms(arms[ours]),
            epoch_ms(arms[theirs]),
        )
        for ours, theirs in order
    ]


DROPPING = Experiment(
    name="dropping",
    shows="Diet Selective-Backprop, figure (a) and Table 1",
    claim="Dropping half at random is on par with dropping by loss, three quarters cost no accuracy, beyond "
    "that loss is better; random is faster.",
    needs=FASHION,
    takes="9 minutes",
    takes_quick="2 minutes",
    how=Comparison("dropping", ("fashion_mnist",), ("embedded",), claim),
)
