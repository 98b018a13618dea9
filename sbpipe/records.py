"""Records that flow between the stages: frozen, without behaviour. They know neither torch nor sockets."""

import enum
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
Floats = NDArray[np.float32]
Rates = NDArray[np.float64]
"""Keep rates, in double precision, because exponents are computed from them."""
Classes = NDArray[np.integer]


class Part(enum.IntEnum):
    """The part of the weights in a snapshot: everything, or only the fast part (norms, biases, head)."""

    WHOLE = 0
    FAST = 1


class RunEnd(enum.StrEnum):
    """How a role ended."""

    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True)
class Lease:
    """A range of an epoch's order, granted to one selector: the unit of credit and of recovery.

    The selector considers the candidates in order, a scoring batch at a time, until `enough` are kept, and
    never keeps more than `most`: the keep rate swings while weights move, so the range is generous and the
    yield is fixed. `version` is the oldest weights version it may score with, and `exact` forbids a newer
    one; `fast_version` is the same for the fast parts alone, if they are published separately (-1 = they are
    not). `history` (scores, oldest first, with their classes where they matter) is sent if the selector's own
    is not the run's; `keep_all` suspends selection (warm-up, anneal). `strength` in [0, 1] says how sharply
    to choose: 0 = uniformly; policies without strength ignore it. `keep` is the share of this lease's
    candidates that the policy must keep; it may change from lease to lease. `doubted` has a bit for each
    candidate (NumPy's packbits; None = no doubts): one whose last score was above `doubt_above`, and is so
    again, is passed over, because its label is probably wrong.
    """

    lease_id: int
    epoch: int
    start: int
    stop: int
    enough: int
    most: int
    version: int
    exact: bool = False
    keep_all: bool = False
    strength: float = 1.0
    history: Floats | None = None
    history_classes: NDArray[np.int32] | None = None
    fast_version: int = -1
    keep: float = 1.0
    doubted: NDArray[np.uint8] | None = None
    doubt_above: float = 0.0

    @property
    def num_candidates(self) -> int:
        """How many candidates the range has."""
        return self.stop - self.start


@dataclass(frozen=True)
class SelectorStats:
    """A selector's statistics, sent with every heartbeat and selection.

    Seconds and counts are totals since it was built for this trainer, so a lost message loses nothing. None =
    not measured.
    """

    weights_version: int = -1
    """The version that it scores with; -1 before the first."""
    precision: str = ""
    """The precision that it scores in now; "" = unknown."""
    scored: int = 0
    """Candidates that went through the model."""
    applied: int = 0
    """Snapshots loaded into the model."""
    overflowed: int = 0
    """Scores that were not finite in a narrow precision; such candidates are never kept."""
    checks: int = 0
    """Comparisons of coarse scores with exact ones."""
    failed_checks: int = 0
    """Comparisons without a result: equal or infinite losses."""
    estimated: int = 0
    """Candidates scored with statistics of BatchNorm layers that were estimated on candidates."""
    view_s: float = 0.0
    """Loading and augmenting candidates."""
    score_s: float = 0.0
    """Forward passes."""
    score_cpu_s: float = 0.0
    """Of these, time on a core; 0 on other devices than a CPU."""
    select_s: float = 0.0
    """The policy."""
    apply_s: float = 0.0
    """Loading snapshots into the model, and preparing the scorer for them."""
    tune_s: float = 0.0
    """Measuring for settings that are "auto", between leases."""
    idle_s: float = 0.0
    """Waiting for a lease."""
    slowest_chunk_s: float = 0.0
    """The longest scoring pass, loading included; a stuck selector is recognised by it."""
    apply_ms: float | None = None
    """Mean time to load one snapshot."""
    transfer_ms: float | None = None
    """Mean time to pull one snapshot over the wire."""
    refresh_ms: float | None = None
    """Mean time the scorer needs to prepare for new weights."""
    agreement: float | None = None
    """Mean rank correlation of scores with those of fp32, in [-1, 1]."""
    scale_agreement: float | None = None
    """Mean rank correlation of scores at the reduced size with those at full size, in [-1, 1]."""
    statistics_agreement: float | None = None
    """Rank correlation of scores in evaluation mode with those by batch statistics."""
    evaluation_loss: float | None = None
    """Mean loss of the last candidates that were scored both in evaluation mode and with batch statistics."""
    batch_loss: float | None = None
    """The same with batch statistics."""

    @property
    def busy_s(self) -> float:
        """Seconds of work."""
        return self.view_s + self.score_s + self.select_s + self.apply_s + self.tune_s


@dataclass(frozen=True)
class Selection:
    """The answer to one lease: its first `len(scores)` candidates were considered; those at `kept` are kept.

    `scores` and `keep_probability` have a value for each considered candidate. Where the model is a
    classifier, `predicted` counts the considered candidates by the class that it takes them for, and `places`
    by how many classes it ranks above their label. `fast_version` is the version of the fast parts that
    scored them (-1 = as `version`).
    """

    lease_id: int
    version: int
    scores: Floats
    kept: NDArray[np.int32]
    keep_probability: Floats
    stats: SelectorStats = SelectorStats()
    predicted: NDArray[np.int32] | None = None
    fast_version: int = -1
    places: NDArray[np.int32] | None = None


class Predicted(NamedTuple):
    """What a classifier says of some candidates: their number by the class that it takes them for, and by how
    many classes it ranks above their label; None = not told.
    """

    by_class: NDArray[np.int32]
    by_place: NDArray[np.int32] | None = None


@dataclass(frozen=True)
class TrainBatch:
    """Exactly `batch_size` kept examples: one optimizer step.

    `version` is, per example, the weights version that scored it, `fast_version` that of the fast parts (None
    = the same) and `arrived_at_step` the step the trainer was at when the selection arrived; `candidates`
    counts the run's candidates considered up to and including this batch. `target_keep` is the keep rate that
    its lease aimed at; `is_fill` says which examples came from the line without a selector's word.
    """

    step: int
    example_ids: Ids
    epochs: Ids
    scores: Floats
    keep_probability: Floats
    version: Ids
    arrived_at_step: Ids
    candidates: int
    target_keep: Rates
    is_fill: NDArray[np.bool_]
    fast_version: Ids | None = None


@dataclass(frozen=True)
class Lot:
    """A batch from a user's collate function: a tree that only the user's code can split, and its size."""

    tree: Any
    num_examples: int

    def __len__(self) -> int:
        return self.num_examples


@dataclass(frozen=True)
class TensorSpec:
    """The place of one parameter or buffer in a flat snapshot, and its part of the model."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    num_bytes: int
    part: str
    also: tuple[str, ...] = ()
    """Its other names, if a model has it in several places."""
    is_channels_last: bool = False
    """Whether its numbers are stored channels-last, and not row by row."""


@dataclass(frozen=True)
class Manifest:
    """The layout of a flat snapshot: the fast parts (normalisation, biases, head) first, then the body.

    A tensor with several names lies there once.
    """

    tensors: tuple[TensorSpec, ...]
    num_bytes: int
    fast_bytes: int
    digest: str

    @property
    def is_channels_last(self) -> bool:
        """Whether kernels of images are stored channels-last, as on the trainer's accelerator."""
        return any(spec.is_channels_last for spec in self.tensors)
