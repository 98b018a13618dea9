"""Figure 18: how much longer a backward pass takes than a forward pass; `pass_times` measures both."""

from typing import Any

from sbpipe.studies.reproduce.experiment import Measurement, Numbers
from sbpipe.studies.reproduce.findings import Finding, between

ABOUT_TWICE = (1.5, 2.5)
MODELS: dict[str, dict[str, Any]] = {
    "small_cnn": {},
    "small_resnet": {"depth": 8},
    "mobilenet_v2_cifar": {"width_mult": 0.5},
    "resnet18_cifar": {"width": 16},
}
QUICK = ("small_cnn", "small_resnet")


def measure(quick: bool) -> Numbers:
    """The ratio of backward to forward seconds of each model, round by round."""
    from sbpipe.studies.reproduce.pass_times import backward_over_forward

    models = {name: options for name, options in MODELS.items() if not quick or name in QUICK}
    return {
        name: backward_over_forward(name, options, rounds=8 if quick else 16)
        for name, options in models.items()
    }


def claim(numbers: Numbers) -> list[Finding]:
    """About twice: between 1.5 and 2.5 times as long, for every model."""
    return [
        between(f"{name}: backward over forward, a batch of 128", ratios, *ABOUT_TWICE)
        for name, ratios in numbers.items()
    ]


FIG18 = Measurement(measure, claim)
