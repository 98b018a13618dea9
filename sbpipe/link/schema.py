"""What a well-formed message is: its fields, their kinds and limits, and the relations between them.

Pure rules over plain values, the same for sending and receiving. It must not know msgpack, frames
or sockets.
"""

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sbpipe.link import messages
from sbpipe.link.kinds import NAME, Z85, Flag, Kind, Member, Real, Record, Text, Texts, Whole
from sbpipe.link.limits import (
    MAX_CANDIDATES,
    MAX_CHUNK_BYTES,
    MAX_CLASSES,
    MAX_CONFIG,
    MAX_HEADER_BYTES,
    MAX_HISTORY,
    MAX_PERIOD_S,
    MAX_REASON,
    MAX_SNAPSHOT_BYTES,
    MAX_TOTAL_S,
    MAX_WELCOME_BYTES,
    MIN_KEEP,
    MIN_PERIOD_S,
)
from sbpipe.link.messages import Message
from sbpipe.records import Lease, Part, RunEnd, Selection, SelectorStats

DTYPES = {"<f4": 4, "<i4": 4, "|u1": 1}


@dataclass(frozen=True)
class Array:
    """An array in a frame of its own after the header: its dtype and its greatest length."""

    dtype: str
    limit: int
    is_optional: bool = False


@dataclass(frozen=True)
class Shape:
    """All rules of one type of message."""

    kind: type[Message]
    fields: Mapping[str, Kind] = field(default_factory=dict)
    arrays: Mapping[str, Array] = field(default_factory=dict)
    header_limit: int = MAX_HEADER_BYTES
    check: Callable[[Any], str] = lambda message: ""

    @cached_property
    def rules(self) -> list[tuple[str, Callable[[Any], bool], Callable[[Any], Any] | None]]:
        """For each field: its legality check, and its conversion on receipt; None = unchanged."""
        return [
            (name, kind.is_legal, None if type(kind).restored is Kind.restored else kind.restored)
            for name, kind in self.fields.items()
        ]

    @cached_property
    def names(self) -> frozenset[str]:
        """The names of all fields and arrays."""
        return frozenset((*self.fields, *self.arrays))


def _lease_fault(lease: Lease) -> str:
    if not lease.start < lease.stop:
        return f"the range {lease.start}..{lease.stop} is empty"
    if lease.stop - lease.start > MAX_CANDIDATES:
        return f"{lease.stop - lease.start} candidates are more than {MAX_CANDIDATES}"
    if lease.history_classes is not None and (
        lease.history is None or len(lease.history) != len(lease.history_classes)
    ):
        return "as many classes as scores must be in a history"
    if lease.doubted is not None and len(lease.doubted) != (lease.num_candidates + 7) // 8:
        return f"{len(lease.doubted)} bytes of doubt for {lease.num_candidates} candidates"
    return _fast_fault(lease)


def _fast_fault(message: Lease | Selection) -> str:
    if -1 != message.fast_version < message.version:
        return f"fast parts of version {message.fast_version} are older than the whole, {message.version}"
    return ""


def _selection_fault(selection: Selection) -> str:
    kept, chances, count = selection.kept, selection.keep_probability, len(selection.scores)
    if count != len(chances):
        return f"{count} scores, {len(chances)} keep probabilities"
    least, most = _range_of(chances) if count else (1.0, 1.0)
    # Comparisons with NaN are false, so NaN is refused too.
    if not (least >= 0 and most <= 1):
        return "a keep probability is outside [0, 1]"
    for what, told in (("predictions", selection.predicted), ("places", selection.places)):
        if told is not None and not _adds_up(told, count):
            return f"{what} are not as many as scores"
    if not len(kept):
        return _fast_fault(selection)
    if kept[0] < 0 or kept[-1] >= count or not _increases(kept):
        return "kept positions are not strictly increasing inside the scores"
    if least == 0 and not chances[kept].all():
        return "a candidate of keep probability 0 was kept"
    return _fast_fault(selection)


# After a train step NumPy's code is not in the caches of the core. Then, for as few numbers as a lease has,
# plain Python takes half the time of NumPy; NumPy is faster only when warm or for many numbers.
_FEW = 512


def _range_of(values: NDArray[np.float32]) -> tuple[float, float]:
    """Minimum and maximum; both NaN if a value is NaN."""
    if len(values) > _FEW:
        return float(values.min()), float(values.max())
    numbers = values.tolist()
    total = sum(numbers)
    return (min(numbers), max(numbers)) if total == total else (total, total)


def _adds_up(counts: NDArray[np.int32], total: int) -> bool:
    """Whether these counts are not negative and sum to `total`."""
    if not 0 < len(counts) <= _FEW:
        return not (counts < 0).any() and int(counts.sum()) == total
    numbers = counts.tolist()
    return bool(min(numbers) >= 0 and sum(numbers) == total)


def _increases(places: NDArray[np.int32]) -> bool:
    if len(places) > _FEW:
        return bool((places[1:] > places[:-1]).all())
    numbers = places.tolist()
    return all(map(operator.lt, numbers, numbers[1:]))


def _chunk_fault(chunk: messages.Chunk) -> str:
    num_bytes = memoryview(chunk.data).nbytes
    return (
        ""
        if 0 < num_bytes <= chunk.total_bytes - chunk.offset
        else f"{num_bytes} bytes at {chunk.offset} of {chunk.total_bytes}"
    )


_COUNT, _BYTES, _REASON = Whole(), Whole(0, MAX_SNAPSHOT_BYTES), Text(MAX_REASON, is_clipped=True)
_FAST_VERSION, _PART = Whole(-1), Member(Part)
_PERIOD = Real(MIN_PERIOD_S, MAX_PERIOD_S)
_TOTAL, _MEAN, _CORRELATION = (
    Real(0.0, MAX_TOTAL_S, is_clipped=True),
    Real(0.0, MAX_TOTAL_S, is_clipped=True, is_optional=True),
    Real(-1.0, 1.0, is_clipped=True, is_optional=True),
)
_STATS = Record(
    SelectorStats,
    {
        "weights_version": Whole(-1),
        "precision": Text(32),
        **dict.fromkeys(("scored", "applied", "overflowed", "checks", "failed_checks", "estimated"), _COUNT),
        **dict.fromkeys(
            (
                "view_s",
                "score_s",
                "score_cpu_s",
                "select_s",
                "apply_s",
                "tune_s",
                "idle_s",
                "slowest_chunk_s",
            ),
            _TOTAL,
        ),
        **dict.fromkeys(("apply_ms", "transfer_ms", "refresh_ms"), _MEAN),
        **dict.fromkeys(("agreement", "scale_agreement", "statistics_agreement"), _CORRELATION),
        **dict.fromkeys(
            ("evaluation_loss", "batch_loss"), Real(-1e30, 1e30, is_clipped=True, is_optional=True)
        ),
    },
)

# By type code. Codes are never reused; 4 (Reject) and its one field never change.
SHAPES: dict[int, Shape] = {
    1: Shape(
        messages.Hello,
        {
            "selector_id": Text(64, NAME),
            "host": Text(),
            "pid": _COUNT,
            "device": Text(64),
            "precision": Text(32),
            "version": Text(64),
        },
    ),
    2: Shape(
        messages.Welcome,
        {
            "config": Text(MAX_CONFIG),
            "shared_memory": Text(),
            "heartbeat_s": _PERIOD,
            "lost_after_s": _PERIOD,
            "is_channels_last": Flag(),
        },
        header_limit=MAX_WELCOME_BYTES,
    ),
    3: Shape(messages.Ready, {"fingerprints": Texts(), "pulls_weights": Flag(), "precision": Text(32)}),
    4: Shape(messages.Reject, {"reason": _REASON}),
    5: Shape(messages.Fenced),
    6: Shape(messages.Heartbeat, {"progress": _COUNT, "stats": replace(_STATS, is_optional=True)}),
    7: Shape(messages.Announce, {"version": _COUNT, "num_bytes": _BYTES, "part": _PART}),
    8: Shape(
        Lease,
        {
            **dict.fromkeys(("lease_id", "epoch", "start", "stop"), _COUNT),
            "enough": Whole(1),
            "most": Whole(1),
            "version": _COUNT,
            "exact": Flag(),
            "keep_all": Flag(),
            "strength": Real(0.0, 1.0),
            "keep": Real(MIN_KEEP, 1.0),
            "fast_version": _FAST_VERSION,
            "doubt_above": Real(-1e30, 1e30),
        },
        {
            "history": Array("<f4", MAX_HISTORY, is_optional=True),
            "history_classes": Array("<i4", MAX_HISTORY, is_optional=True),
            "doubted": Array("|u1", MAX_CANDIDATES // 8, is_optional=True),
        },
        check=_lease_fault,
    ),
    9: Shape(
        Selection,
        {
            "lease_id": _COUNT,
            "version": _COUNT,
            "stats": _STATS,
            "fast_version": _FAST_VERSION,
        },
        {
            "scores": Array("<f4", MAX_CANDIDATES),
            "kept": Array("<i4", MAX_CANDIDATES),
            "keep_probability": Array("<f4", MAX_CANDIDATES),
            "predicted": Array("<i4", MAX_CLASSES, is_optional=True),
            "places": Array("<i4", MAX_CLASSES, is_optional=True),
        },
        check=_selection_fault,
    ),
    10: Shape(messages.Goodbye, {"end": Member(RunEnd), "reason": _REASON}),
    11: Shape(
        messages.Fetch,
        {"version": _COUNT, "offset": _BYTES, "num_bytes": Whole(1, MAX_CHUNK_BYTES), "part": _PART},
    ),
    12: Shape(
        messages.Chunk,
        {"version": _COUNT, "offset": _BYTES, "total_bytes": _BYTES, "part": _PART},
        {"data": Array("|u1", MAX_CHUNK_BYTES)},
        check=_chunk_fault,
    ),
    13: Shape(messages.Gone, {"version": _COUNT, "part": _PART}),
    14: Shape(messages.NewKey, {"public": Text(40, Z85)}),
}

CODES: dict[type[Message], int] = {shape.kind: code for code, shape in SHAPES.items()}
REJECT = CODES[messages.Reject]
