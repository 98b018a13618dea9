"""The Diet-SB poster: pruning before training, and dropping on top of it. Judges curves; knows no runs."""

from sbpipe.studies.reproduce.experiment import Comparison, Scores
from sbpipe.studies.reproduce.findings import COMPARABLE, Arms, Finding, Tasks, lower
from sbpipe.studies.reproduce.pace import epoch_ms, shorter_in_turn

EL2N, DIETS = "el2n 0.75", ("diet-sb 0.5", "diet-sb 0.375")
"""An arm is named by its method and what it keeps of all examples."""
LEFT = 0.75
"""The share of the data set left after pruning by EL2N, for EL2N and for Diet-SB."""


def claim(tasks: Tasks) -> list[Finding]:
    """Figure (b): accuracy of EL2N, SB and Diet-SB; Table 1: seconds per epoch."""
    return [
        finding for task, arms in tasks.items() for finding in [*_accuracy(task, arms), *_runtime(task, arms)]
    ]


def _accuracy(task: str, arms: Arms) -> list[Finding]:
    found = [
        lower(
            f"{task}: dropping half in training has little impact, sb 0.5 at most {COMPARABLE:g}x the error "
            "of full",
            arms["sb 0.5"],
            arms["full"],
            factor=COMPARABLE,
        ),
        lower(
            f"{task}: removing a quarter for good has a stronger one, sb 0.5 below {EL2N}",
            arms["sb 0.5"],
            arms[EL2N],
        ),
    ]
    for diet in DIETS:
        found += [
            lower(
                f"{task}: {diet} is limited by EL2N, {EL2N} at most {COMPARABLE:g}x its error",
                arms[EL2N],
                arms[diet],
                factor=COMPARABLE,
            ),
            lower(
                f"{task}: {diet} sacrifices nothing on top of EL2N, at most {COMPARABLE:g}x its error",
                arms[diet],
                arms[EL2N],
                factor=COMPARABLE,
            ),
            lower(
                f"{task}: {diet} sacrifices nothing, at most {COMPARABLE:g}x the error of full",
                arms[diet],
                arms["full"],
                factor=COMPARABLE,
            ),
        ]
    return found


def _runtime(task: str, arms: Arms) -> list[Finding]:
    some, most = DIETS
    times = {arm: epoch_ms(runs, LEFT if arm in (EL2N, *DIETS) else 1.0) for arm, runs in arms.items()}
    order = (
        (EL2N, "full"),
        (most, EL2N),
        (most, some),
        (some, "sb 0.5"),
        ("random 0.5", "sb 0.5"),
        ("random 0.25", "random 0.5"),
    )
    return shorter_in_turn(task, times, order)


DIET = Comparison("diet", ("fashion_mnist",), ("embedded",), claim, Scores("el2n", models=3, share=0.25))
