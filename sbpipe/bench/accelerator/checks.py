"""All checks, by name: what each asks, and the file that answers. Imports none, for they need torch."""

from importlib import import_module
from typing import Any

QUESTIONS = {
    "identity": "which devices are these, and what can they do",
    "repeats": "does a run under a logical clock end with the same bits twice",
    "tf32": "what TF32 changes in scores, and in folded against plain models",
    "precisions": "how fast each precision scores, and whether it ranks like fp32",
    "compiled": "what compiling the scoring pass gains, or recording it as a graph",
    "waits": "how often the host waits for the device in a step of the loop and in a scoring pass",
    "bandwidth": "how fast bytes move between host and devices, and between devices",
    "publishing": "what publishing and applying weights costs",
    "busy": "how much of the wall clock the device computes",
    "both": "how the second device compares with the first, and whether both rank alike",
    "direct": "do weights go from one device to the other without the host",
    "collectives": "how fast two devices share gradients",
}
"""In the order in which they are asked."""


def measure_of(name: str) -> Any:
    """The function that answers: from a size to facts."""
    return import_module(f"sbpipe.bench.accelerator.{name}").measure
