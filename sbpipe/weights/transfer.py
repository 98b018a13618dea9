"""A snapshot in pieces, by credit: a pure state machine that says which pieces to request next. Knows no
socket.

The puller requests `CREDIT` pieces ahead, so the sender never has more than that on its way, and heartbeats
never wait behind a model. The newest announced version wins, but a pull that has begun is finished first:
half a model is useless.
"""

from typing import NamedTuple

import torch

CREDIT = 4


class Piece(NamedTuple):
    """Some bytes of one version's snapshot."""

    version: int
    offset: int
    num_bytes: int


class Pull:
    """One selector's transfers: at most one in progress."""

    def __init__(self, num_bytes: int, piece_bytes: int) -> None:
        self._num_bytes = num_bytes
        self._piece_bytes = piece_bytes
        self._target = -1
        self.version = -1
        self._flat: torch.Tensor | None = None
        self._asked = 0
        self._missing: set[int] = set()
        self.done = -1

    @property
    def is_pulling(self) -> bool:
        """Whether pieces are on their way."""
        return self._flat is not None

    def want(self, version: int) -> list[Piece]:
        """Set the wanted version; returns the pieces to request now."""
        self._target = version
        return self._start() if self._flat is None else []

    def restart(self) -> list[Piece]:
        """Pieces were lost: restart with the version wanted now."""
        self._flat = None
        return self._start()

    def gone(self) -> list[Piece]:
        """The trainer no longer has the version being pulled: pull a newer one, now or when announced."""
        self._flat = None
        # Counted as done, so that the same version is not requested again.
        self.done = max(self.done, self.version)
        return self._start()

    def receive(self, version: int, offset: int, data: memoryview) -> tuple[list[Piece], torch.Tensor | None]:
        """A piece arrived; returns the pieces to request next, and the snapshot if this was its
        last piece.
        """
        if (
            self._flat is None
            or version != self.version
            or offset not in self._missing
            or len(data) != self._size(offset)
        ):
            return [], None
        # Copied twice, because torch warns about read-only memory, which a received frame is.
        self._flat[offset : offset + len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        self._missing.discard(offset)
        if self._missing:
            return self._ask(1), None
        whole, self._flat, self.done = self._flat, None, version
        return self._start(), whole

    def _start(self) -> list[Piece]:
        if self._target <= self.done:
            return []
        self.version = self._target
        self._flat = torch.empty(self._num_bytes, dtype=torch.uint8)
        self._asked = 0
        self._missing = set(range(0, self._num_bytes, self._piece_bytes))
        return self._ask(CREDIT)

    def _ask(self, count: int) -> list[Piece]:
        pieces: list[Piece] = []
        while len(pieces) < count and self._asked < self._num_bytes:
            pieces.append(Piece(self.version, self._asked, self._size(self._asked)))
            self._asked += self._piece_bytes
        return pieces

    def _size(self, offset: int) -> int:
        return min(self._piece_bytes, self._num_bytes - offset)
