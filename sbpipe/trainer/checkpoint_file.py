"""One checkpoint: torch's archive, and behind it one line with a digest over every byte before it.

`torch.load(path, weights_only=True)` reads it too. It must not know what it holds, nor which others exist.
"""

import errno
import hashlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from pickle import UnpicklingError
from typing import IO, Any, BinaryIO, cast

import numpy as np
import torch

from sbpipe.files import atomic_file

FORMAT = 5
_LINE = "sbpipe checkpoint {:4d} blake2b {}\n"
_PATTERN = re.compile(rb"sbpipe checkpoint +(\d+) blake2b ([0-9a-f]{64})\n")
_LINE_BYTES = len(_LINE.format(FORMAT, 64 * "0"))
_PIECE_BYTES = 1 << 22


class Damaged(Exception):
    """A checkpoint that cannot be used, and why."""


def write(path: Path, step: int, state: dict[str, Any], on_piece: Callable[[], None]) -> None:
    """Write what `frozen` gave, whole or not at all, until it is on disk; `on_piece` shows that it goes on.

    Raises OSError.
    """
    _check_room(path.parent, _num_bytes(state))
    with atomic_file(path, is_durable=True) as file:
        summed = _Summed(file, on_piece)
        try:
            # torch asks of a file only that it can be written to.
            torch.save({"format": FORMAT, "step": step, **state}, cast("IO[bytes]", summed))
        except RuntimeError:
            # It tells what went wrong in a write in words of its own.
            raise summed.error or OSError(errno.EIO, "torch could not write it") from None
        file.write(_LINE.format(FORMAT, summed.digest.hexdigest()).encode())


def _check_room(folder: Path, num_bytes: int) -> None:
    """Raise before anything is written: half a file on a full disk takes the room of events and logs."""
    disk = os.statvfs(folder)
    free = disk.f_bavail * disk.f_frsize
    if free < num_bytes:
        words = f"No space left on device: it needs {num_bytes / 1e6:.1f} MB, {free / 1e6:.1f} MB are free"
        raise OSError(errno.ENOSPC, words)


def _num_bytes(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    return sum(map(_num_bytes, value.values())) if isinstance(value, dict) else 0


def read(path: Path) -> dict[str, Any]:
    """What was written; raises `Damaged` unless every byte is as it was."""
    try:
        with path.open("rb") as file:
            _check(file)
            file.seek(0)
            state = torch.load(file, weights_only=True, map_location="cpu")
    except (OSError, RuntimeError, EOFError, ValueError, KeyError, UnpicklingError) as error:
        raise Damaged(str(error).partition("\n")[0] or type(error).__name__) from None
    return dict(thawed(state))


def _check(file: BinaryIO) -> None:
    num_bytes = os.fstat(file.fileno()).st_size - _LINE_BYTES
    file.seek(max(0, num_bytes))
    line = _PATTERN.fullmatch(file.read())
    if line is None:
        raise Damaged("its last line is no digest: it was cut short, or an older version wrote it")
    if int(line[1]) != FORMAT:
        raise Damaged(f"it has format {int(line[1])}, this version reads {FORMAT}")
    file.seek(0)
    digest = _new_digest()
    while num_bytes > 0 and (piece := file.read(min(_PIECE_BYTES, num_bytes))):
        digest.update(piece)
        num_bytes -= len(piece)
    if digest.hexdigest().encode() != line[2]:
        raise Damaged("its digest does not match: at least one byte has changed since it was written")


def _new_digest() -> hashlib.blake2b:
    return hashlib.blake2b(digest_size=32)


class _Summed:
    """A file that sums up what goes through it."""

    def __init__(self, file: BinaryIO, on_piece: Callable[[], None]) -> None:
        self.digest = _new_digest()
        self._file = file
        self._on_piece = on_piece
        self.error: OSError | None = None

    def write(self, content: bytes) -> int:
        """A tensor comes in one call, whatever its size: it goes on in pieces, each a sign of life."""
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
        """Asked for by torch."""
        self._file.flush()


# NumPy arrays travel as tensors under a marker, so that reading needs nothing but torch's safe loader.
_MARK = "__array__"


def frozen(value: Any) -> Any:
    """A state in the form in which it is written; its arrays may change from now on."""
    if isinstance(value, np.ndarray):
        return {_MARK: torch.from_numpy(value.copy())}
    return {name: frozen(inner) for name, inner in value.items()} if isinstance(value, dict) else value


def thawed(value: Any) -> Any:
    """A state as it was before it was frozen."""
    if not isinstance(value, dict):
        return value
    return (
        value[_MARK].numpy()
        if set(value) == {_MARK}
        else {name: thawed(inner) for name, inner in value.items()}
    )
