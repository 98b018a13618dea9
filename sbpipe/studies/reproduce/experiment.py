"""Records of an experiment: its claim, what it needs, how it is measured and judged."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sbpipe.studies.reproduce.findings import Finding, Tasks

Numbers = Mapping[str, Sequence[float]]
"""The result of a measurement: lists of numbers by name."""


@dataclass(frozen=True)
class Scores:
    """How to make the score files that arms of a comparison prune by (`data.prune`)."""

    kind: str
    models: int
    share: float
    """The training of each of these models, as a share of `train.epochs` of the task's arms."""


@dataclass(frozen=True)
class Comparison:
    """Arms by tasks by seeds, run as `sbpipe compare` runs them."""

    file: str
    """Its name in configs/cpu, without the ending."""
    tasks: tuple[str, ...]
    """The tasks of the file that belong to this experiment."""
    quick_tasks: tuple[str, ...]
    """Tasks on the embedded data, used instead with --quick."""
    judge: Callable[[Tasks], list[Finding]]
    scores: Scores | None = None
    """The scores made before the runs; None = no arm prunes."""


@dataclass(frozen=True)
class Measurement:
    """A computation in this process; its argument says whether it must be quick."""

    measure: Callable[[bool], Numbers]
    judge: Callable[[Numbers], list[Finding]]
    arrays: str = ""
    """The file of arrays that it reads, unless it is quick."""


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
    """The time it takes on two cores, roughly."""
    takes_quick: str
