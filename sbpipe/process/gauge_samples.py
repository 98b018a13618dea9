"""Times that were measured, and what is said of them: means without the extremes, and how far they vary.

By the wall clock: what else this machine does is part of what a run would meet.
"""

import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch

Costs = dict[str, Any]
LEAST_STEPS = 3
_TRIMMED = 0.1
"""Share of the measurements left out at either end."""


def for_a_while(seconds: float, least: int) -> Iterator[int]:
    """Counts, at least so far and until the time is up."""
    give_up, count = time.perf_counter() + seconds, 0
    while count < least or time.perf_counter() < give_up:
        yield count
        count += 1


def synchronise(device: torch.device) -> None:
    """Wait until the device has done what it was given."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def mean_ms(seconds: Sequence[float]) -> float:
    """The mean without the extremes, in milliseconds."""
    return 1e3 * trimmed(seconds)


def trimmed(values: Sequence[float]) -> float:
    """The mean without the extremes."""
    ordered = sorted(values)
    cut = int(len(ordered) * _TRIMMED)
    return statistics.fmean(ordered[cut : len(ordered) - cut])


def spread(values: Sequence[float]) -> float:
    """Half of what lies between the sixths at either end, over the mean: of a normal, about its deviation."""
    ordered = sorted(values)
    cut = len(ordered) // 6
    return (ordered[len(ordered) - 1 - cut] - ordered[cut]) / 2.0 / statistics.fmean(ordered)
