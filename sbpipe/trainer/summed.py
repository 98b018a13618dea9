"""Files with a digest over what is written or read, and the disk space they need. Knows no checkpoint."""

import errno
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

_PIECE_BYTES = 1 << 22


def new_digest() -> hashlib.blake2b:
    """A hash for the digest of a file."""
    return hashlib.blake2b(digest_size=32)


def add(digest: hashlib.blake2b, file: BinaryIO, num_bytes: int, on_piece: Callable[[], None]) -> None:
    """Add the next `num_bytes` of a file to a digest, fewer if it ends before."""
    while num_bytes > 0 and (piece := file.read(min(_PIECE_BYTES, num_bytes))):
        digest.update(piece)
        num_bytes -= len(piece)
        on_piece()


def digest_of(path: Path, on_piece: Callable[[], None] = lambda: None) -> str:
    """The digest of a whole file. Raises OSError."""
    digest = new_digest()
    with path.open("rb") as file:
        add(digest, file, os.fstat(file.fileno()).st_size, on_piece)
    return digest.hexdigest()


class Summed:
    """A file that computes a digest of what is written to it."""

    def __init__(self, file: BinaryIO, on_piece: Callable[[], None]) -> None:
        self.digest = new_digest()
        self._file = file
        self._on_piece = on_piece
        self.error: OSError | None = None

    def write(self, content: bytes | memoryview) -> int:
        """Write in pieces, and report each: torch passes a tensor of any size in one call."""
        whole = memoryview(content).cast("B")
        for begin in range(0, len(whole), _PIECE_BYTES):
            piece = whole[begin : begin + _PIECE_BYTES]
            self.digest.update(piece)
            try:
                self._file.write(piece)
            except OSError as error:
                self.error = error
                raise
            self._on_piece()
        return len(whole)

    def flush(self) -> None:
        """Called by torch."""
        self._file.flush()


def check_room(folder: Path, num_bytes: int) -> None:
    """Raise before anything is written: half a file on a full disk would take the space of
    events and logs.
    """
    disk = os.statvfs(folder)
    free = disk.f_bavail * disk.f_frsize
    if free < num_bytes:
        words = f"No space left on device: it needs {num_bytes / 1e6:.1f} MB, {free / 1e6:.1f} MB are free"
        raise OSError(errno.ENOSPC, words)
