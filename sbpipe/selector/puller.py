"""Pulling weights over the wire, in the selector's link thread: one pull for each part. Knows no port."""

import time
from collections.abc import Callable, Mapping
from typing import Protocol

import torch

from sbpipe.link.messages import Announce, Chunk, Fetch, Gone
from sbpipe.records import Lease, Part
from sbpipe.runs.spans import Spans
from sbpipe.weights.transfer import Piece, Pull

_STALLED_S = 10.0
_STAGES = {Part.WHOLE: "transfer", Part.FAST: "transfer_fast"}


class Arrivals(Protocol):
    """The receiver of complete snapshots."""

    def leads(self) -> bool:
        """Whether this process is the one that pulls."""
        ...

    def offer(self, version: int, flat: torch.Tensor, part: Part = Part.WHOLE) -> None:
        """A complete snapshot of a part has arrived."""
        ...


class Puller:
    """Requests the pieces of each part of the weights, and offers a snapshot once it is complete."""

    def __init__(
        self,
        sizes: Mapping[Part, int],
        piece_bytes: int,
        source: Arrivals,
        send: Callable[[Fetch], object],
        spans: Spans,
    ) -> None:
        """`sizes` are the bytes of a snapshot of each part that is published."""
        self._pulls = {part: Pull(num_bytes, piece_bytes) for part, num_bytes in sizes.items()}
        self._source = source
        self._send = send
        self._spans = spans
        self._wanted: dict[Part, int] = {}
        self._began = dict.fromkeys(sizes, 0.0)
        self._piece_at = dict.fromkeys(sizes, 0.0)

    def lease(self, lease: Lease) -> None:
        """Request the versions that an exact lease names: under a logical clock nothing is announced."""
        if lease.exact:
            self._want(Part.WHOLE, lease.version)
            # The whole includes its fast part: only a newer one is worth a transfer.
            if lease.fast_version > lease.version:
                self._want(Part.FAST, lease.fast_version)

    def handle(self, message: Announce | Chunk | Gone) -> None:
        """Handle a message about weights."""
        pull = self._pulls.get(message.part)
        if pull is None:
            return
        if isinstance(message, Announce):
            self._want(message.part, message.version)
        elif isinstance(message, Chunk):
            self._receive(pull, message)
        elif message.version == pull.version:
            self._ask(message.part, pull.gone())

    def watch(self, now: float) -> None:
        """Restart if pieces were lost, or take over if the selector that pulled for this host is gone."""
        for part, version in self._wanted.items():
            self._want(part, version)
        for part, pull in self._pulls.items():
            if pull.is_pulling and now - self._piece_at[part] > _STALLED_S:
                self._ask(part, pull.restart())

    def _want(self, part: Part, version: int) -> None:
        if part not in self._pulls:
            return
        self._wanted[part] = version
        if self._source.leads():
            self._ask(part, self._pulls[part].want(version))

    def _ask(self, part: Part, pieces: list[Piece]) -> None:
        for piece in pieces:
            if piece.offset == 0:
                self._began[part] = time.perf_counter()
            self._piece_at[part] = time.monotonic()
            self._send(Fetch(*piece, part))

    def _receive(self, pull: Pull, chunk: Chunk) -> None:
        self._piece_at[chunk.part] = time.monotonic()
        # Read first: the requests below may begin another pull and reset it.
        began = self._began[chunk.part]
        pieces, snapshot = pull.receive(chunk.version, chunk.offset, memoryview(chunk.data))
        if snapshot is not None:
            self._spans.add(_STAGES[chunk.part], began, time.perf_counter() - began)
            self._source.offer(chunk.version, snapshot, chunk.part)
        self._ask(chunk.part, pieces)
