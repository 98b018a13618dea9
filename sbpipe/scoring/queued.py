"""Passes queued on a device, and the one copy that brings their results to the host.

It must not know models, precisions or leases.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sbpipe.machine.copies import Arrival, Downloads
from sbpipe.records import Floats

Again: TypeAlias = Callable[[], tuple[Any, Tensor]]
"""Makes the inputs and targets of a pass once more."""
Found: TypeAlias = dict[str, NDArray[Any]]


class Scored(NamedTuple):
    """The results of a forward pass; None for those not asked for, or if the model is not a classifier."""

    scores: Floats
    predictions: NDArray[np.int64] | None = None
    residuals: Floats | None = None
    places: NDArray[np.int64] | None = None


@dataclass(frozen=True)
class Queued:
    """A pass: its results by name, perhaps still on the device, and what is needed to judge them."""

    found: dict[str, Tensor]
    num_candidates: int
    way: int
    """The number of the program that scored it: if the scorer's has changed, the pass must be repeated."""
    is_checked: bool
    was_estimated: bool
    again: Again
    is_sound: bool | Tensor = True
    """Whether its weights are finite; on an accelerator a tensor, which is among its results until it was
    read once.
    """
    before: tuple[tuple[int, bool], tuple[int, int]] | None = None
    """The counts of both kinds of checks before it was queued."""


class Findings:
    """The results of passes, on their way to the host."""

    def __init__(self, passes: Sequence[Queued], arrival: Arrival) -> None:
        self._passes, self._arrival = passes, arrival

    @property
    def are_here(self) -> bool:
        """Whether `wait` would wait for nothing."""
        return self._arrival.is_here

    def wait(self) -> list[Found]:
        """Of each pass, by name; waits once, for all of them."""
        arrived = iter(self._arrival.wait())
        return [{name: next(arrived).numpy() for name in each.found} for each in self._passes]


class Reader:
    """Copies the results of passes to the host."""

    def __init__(self, device: torch.device) -> None:
        self._downloads = None if device.type == "cpu" else Downloads(device)

    def start(self, passes: Sequence[Queued]) -> Findings:
        """Start one copy of all results, without waiting for it."""
        found = [value for each in passes for value in each.found.values()]
        return Findings(passes, Arrival(found) if self._downloads is None else self._downloads(found))

    def __call__(self, passes: Sequence[Queued]) -> list[Found]:
        """Of each pass, by name; waits once, for all of them."""
        return self.start(passes).wait()


class Coming:
    """Scores of some candidates, on their way to the host where they come from an accelerator."""

    def __init__(
        self, num_candidates: int, scores: Callable[[], Floats], findings: Findings | None = None
    ) -> None:
        self._num_candidates, self._findings, self.scores = num_candidates, findings, scores

    def __len__(self) -> int:
        return self._num_candidates

    @property
    def are_here(self) -> bool:
        """Whether `scores` would wait for nothing."""
        return self._findings is None or self._findings.are_here
