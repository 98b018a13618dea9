"""Weights over the wire, as the selector's link thread sees them: one pull of the whole, one of the fast
parts. Knows no port.
"""

import time
from collections.abc import Callable

from sbpipe.link.messages import Announce, Chunk, Fetch, Gone
from sbpipe.records import Lease
from sbpipe.runs.spans import Spans
from sbpipe.weights.replica import PulledSource
from sbpipe.weights.transfer import Pull

_STALLED_S = 10.0


class Puller:
    """Keeps the pieces of one kind of snapshot coming, and offers it once it is whole."""

    def __init__(
        self,
        pull: Pull,
        source: PulledSource,
        send: Callable[[Fetch], object],
        spans: Spans,
        *,
        is_fast: bool = False,
    ) -> None:
        self._pull = pull
        self._source = source
        self._send = send
        self._spans = spans
        self._is_fast = is_fast
        self._began = 0.0
        self._piece_at = 0.0

    def lease(self, lease: Lease) -> None:
        """An exact lease names the version it needs; fast parts that are as old as the whole come with it."""
        if lease.exact and not self._is_fast:
            self._ask(self._pull.want(lease.version))
        elif lease.exact and lease.fast_version > lease.version:
            self._ask(self._pull.want(lease.fast_version))

    def handle(self, message: Announce | Chunk | Gone) -> None:
        """Something came; it may be meant for another puller."""
        if message.is_fast != self._is_fast:
            return
        if isinstance(message, Announce):
            self._ask(self._pull.want(message.version))
        elif isinstance(message, Chunk):
            self._receive(message)
        elif message.version == self._pull.version:
            self._ask(self._pull.gone())

    def watch(self, now: float) -> None:
        """Begin again if pieces were lost."""
        if self._pull.is_pulling and now - self._piece_at > _STALLED_S:
            self._ask(self._pull.restart())

    def _ask(self, pieces: list[tuple[int, int, int]]) -> None:
        for version, offset, num_bytes in pieces:
            if offset == 0:
                self._began = time.perf_counter()
            self._piece_at = time.monotonic()
            self._send(Fetch(version, offset, num_bytes, self._is_fast))

    def _receive(self, chunk: Chunk) -> None:
        self._piece_at = time.monotonic()
        began = self._began
        pieces, whole = self._pull.receive(chunk.version, chunk.offset, memoryview(chunk.data))
        if whole is not None:
            self._spans.add(
                "transfer_fast" if self._is_fast else "transfer", began, time.perf_counter() - began
            )
            self._source.offer(chunk.version, whole, is_fast=self._is_fast)
        self._ask(pieces)
