"""Answers to leases, made beforehand: of each kind of lease a few, into which only the numbers of one lease
are written. Making one anew would cost a simulated selector more than the answer costs the trainer.
"""

import struct
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from sbpipe.link.frames import Body, pack
from sbpipe.link.limits import MAX_COUNT
from sbpipe.records import Lease, Selection, SelectorStats
from sbpipe.selection import choose

PASS = 64
"""Candidates that are scored at a time."""
_EACH = 8
"""Different answers to leases of one kind."""
_CLASSES = 10
_WHOLE, _REAL = struct.Struct(">Q"), struct.Struct(">d")

STATS = SelectorStats(
    weights_version=1,
    precision="fp32",
    applied=1,
    checks=16,
    estimated=64,
    view_s=0.1,
    score_cpu_s=0.1,
    select_s=0.1,
    apply_s=0.1,
    idle_s=0.1,
    slowest_chunk_s=0.1,
    apply_ms=0.1,
    transfer_ms=0.1,
    refresh_ms=0.1,
    agreement=0.9,
    scale_agreement=0.9,
    statistics_agreement=0.9,
    evaluation_loss=0.9,
    batch_loss=0.9,
)
"""All that a selector can tell of a classifier with BatchNorm, which pulls its weights; what it tells of its
speed is another's.
"""


class _Kind(NamedTuple):
    """The fields of a lease that its answer depends on."""

    num_candidates: int
    enough: int
    most: int
    keep: float
    keep_all: bool


@dataclass(frozen=True)
class Answer:
    """A packed selection without its lease, version and selector's statistics."""

    scored: int
    """Candidates that went through the model for it."""
    _code: int
    _frames: tuple[bytes, ...]
    _places: tuple[int, int, int, int]

    def of(self, lease: Lease, scored: int, score_s: float) -> Body:
        """The answer to this lease of a selector that has scored so many candidates in so many seconds."""
        header = bytearray(self._frames[0])
        at_lease, at_version, at_scored, at_seconds = self._places
        _WHOLE.pack_into(header, at_lease, lease.lease_id)
        _WHOLE.pack_into(header, at_version, lease.version)
        _WHOLE.pack_into(header, at_scored, scored)
        _REAL.pack_into(header, at_seconds, score_s)
        return Body(self._code, [bytes(header), *self._frames[1:]])


class Answers:
    """The answers of one process; their scores are random."""

    def __init__(self) -> None:
        self._chance = np.random.default_rng(0)
        self._known: dict[_Kind, list[Answer]] = {}
        self._turn = 0

    def to(self, lease: Lease) -> Answer:
        """One that this lease may get."""
        kind = _Kind(lease.num_candidates, lease.enough, lease.most, lease.keep, lease.keep_all)
        known = self._known.get(kind)
        if known is None:
            selections = (self._select(kind) for _ in range(_EACH))
            known = self._known[kind] = [prepared(one, kind.num_candidates) for one in selections]
        self._turn += 1
        return known[self._turn % _EACH]

    def _select(self, kind: _Kind) -> Selection:
        """As `selector/answer.py` considers and cuts."""
        draws, considered = self._chance.random(kind.num_candidates), kind.num_candidates
        if kind.enough < kind.num_candidates and not kind.keep_all:  # a set, considered as a whole
            kept = np.sort(np.argsort(draws)[: kind.enough]).astype(np.int32)
        else:
            considered, kept = choose(draws < (1.0 if kind.keep_all else kind.keep), kind.most)
        scores = self._chance.random(considered, np.float32)
        chances = np.full(considered, kind.keep, np.float32)
        classes, places = (
            np.bincount(told, minlength=_CLASSES).astype(np.int32)
            for told in self._chance.integers(0, _CLASSES, (2, considered))
        )
        return Selection(0, 0, scores, kept, chances, predicted=classes, places=places)


# Numbers that take all of their bytes when packed, and that stand in a header once.
_LEASE, _VERSION, _SCORED, _SECONDS = MAX_COUNT - 1, MAX_COUNT - 2, MAX_COUNT - 3, 123_456_789.125


def prepared(selection: Selection, num_candidates: int) -> Answer:
    """An answer with the scores and choices of this selection, to a lease of so many candidates."""
    # Whole passes, the last one of a lease as long as what is left of it.
    scored = min(num_candidates, -(-len(selection.scores) // PASS) * PASS)
    stats = replace(STATS, scored=_SCORED, score_s=_SECONDS)
    body = pack(replace(selection, lease_id=_LEASE, version=_VERSION, stats=stats))
    frames = tuple(bytes(part) for part in body.frames)
    numbers = (_WHOLE.pack(_LEASE), _WHOLE.pack(_VERSION), _WHOLE.pack(_SCORED), _REAL.pack(_SECONDS))
    assert all(frames[0].count(number) == 1 for number in numbers)
    lease, version, scored_at, seconds = (frames[0].index(number) for number in numbers)
    return Answer(scored, body.code, frames, (lease, version, scored_at, seconds))
