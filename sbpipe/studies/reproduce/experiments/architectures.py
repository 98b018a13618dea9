"""Figure 16: three families of networks at a static rate. Judges curves; knows nothing of runs."""

from sbpipe.studies.reproduce.experiment import Comparison
from sbpipe.studies.reproduce.findings import Finding, Tasks, sooner_than

FACTORS = (1.2, 1.4)


def claim(tasks: Tasks) -> list[Finding]:
    """In every family `sb` is sooner than `full`."""
    return [
        sooner_than(task, arms, "sb", "full", factor) for task, arms in tasks.items() for factor in FACTORS
    ]


FIG16 = Comparison(
    "architectures",
    ("resnet18", "densenet", "mobilenet_v2"),
    ("quick resnet18", "quick densenet", "quick mobilenet_v2"),
    claim,
)
