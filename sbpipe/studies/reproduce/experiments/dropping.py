"""The Diet-SB poster: dropping at random against dropping by loss. Judges curves; knows no runs."""

from sbpipe.studies.reproduce.experiment import Comparison
from sbpipe.studies.reproduce.findings import COMPARABLE, Arms, Finding, Tasks, lower
from sbpipe.studies.reproduce.pace import epoch_ms, shorter_in_turn


def claim(tasks: Tasks) -> list[Finding]:
    """Accuracy at 50, 75 and 90 % dropped, and time per epoch. An arm is its policy and what it keeps."""
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
    return shorter_in_turn(task, {arm: epoch_ms(runs) for arm, runs in arms.items()}, order)


DROPPING = Comparison("dropping", ("fashion_mnist",), ("embedded",), claim)
