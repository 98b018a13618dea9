"""Figure 16: three families of networks at a static rate. Configs and claim; knows nothing of runs."""

from sbpipe.studies.reproduce.experiment import CIFAR, Comparison, Experiment
from sbpipe.studies.reproduce.findings import Finding, Tasks, sooner, target

FACTORS = (1.2, 1.4)


def claim(tasks: Tasks) -> list[Finding]:
    """In every family `sb` is sooner than `full`."""
    return [
        sooner(
            f"{task}: sb sooner than full to {factor:g}x",
            arms["sb"],
            arms["full"],
            target(arms["full"], factor),
        )
        for task, arms in tasks.items()
        for factor in FACTORS
    ]


FIG16 = Experiment(
    name="fig16",
    shows="Figure 16",
    claim="Selective-Backprop reaches target errors sooner than Traditional with ResNet18, DenseNet and "
    "MobileNetV2 alike (narrow ones here).",
    needs=CIFAR,
    takes="20 minutes",
    takes_quick="2 minutes",
    how=Comparison(
        "architectures",
        ("resnet18", "densenet", "mobilenet_v2"),
        ("quick resnet18", "quick densenet", "quick mobilenet_v2"),
        claim,
    ),
)
