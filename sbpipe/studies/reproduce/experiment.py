"""What an experiment is: its claim, what it needs, how it is measured and judged. Records."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sbpipe.studies.reproduce.findings import Finding, Tasks

Numbers = Mapping[str, Sequence[float]]
"""What a measurement leaves: lists of numbers by name."""


@dataclass(frozen=True)
class Scores:
    """How the score files are made that arms of a comparison prune by (`data.prune`)."""

    kind: str
    models: int
    share: float
    """Of the training of a task's arms (`train.epochs`) that each of these models has."""


@dataclass(frozen=True)
class Comparison:
    """Arms by tasks by seeds, run as `sbpipe compare` runs them."""

    file: str
    """Its name in configs/cpu, without the ending."""
    tasks: tuple[str, ...]
    """Those of the file that belong to this experiment."""
    quick_tasks: tuple[str, ...]
    """Those on the embedded data, which stand in for them when there is little time."""
    judge: Callable[[Tasks], list[Finding]]
    scores: Scores | None = None
    """Made before the runs; None: no arm prunes."""


@dataclass(frozen=True)
class Measurement:
    """A computation in this process; it takes whether it shall be quick."""

    measure: Callable[[bool], Numbers]
    judge: Callable[[Numbers], list[Finding]]
    arrays: str = ""
    """The file of arrays that it reads unless it is quick."""


@dataclass(frozen=True)
class Experiment:
    """One experiment of the paper or a poster."""

    name: str
    how: Comparison | Measurement
    shows: str
    """The figure or table."""
    claim: str
    """In one sentence."""
    needs: str
    takes: str
    """About how long on two cores."""
    takes_quick: str
