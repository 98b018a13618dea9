"""Arrays out of .npz files that anybody may have written: sizes are checked before memory is taken.

Nothing is unpickled. What an array claims to be (its header) must agree with the bytes that are there, and
packed bytes may grow only so far. It must not know what the arrays are for.
"""

import math
import os
import stat
import struct
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

FREE_BYTES = 1 << 30
"""So much an archive may always unpack to; beyond it, at most GROWTH times the size of its file."""
GROWTH = 100
MOST_AXES = 8
MOST_MEMBERS = 256
_PIECE_BYTES = 1 << 20
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
# Raised by zipfile, zlib and numpy for a file that is damaged, encrypted or compressed in an unknown way.
_DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    ValueError,
    TypeError,
    EOFError,
    OSError,
    RuntimeError,
    NotImplementedError,
    OverflowError,
    RecursionError,
    SyntaxError,
    MemoryError,
    tokenize.TokenError,
)


class BadArchive(ValueError):
    """A file without readable arrays; the message says why, in one line."""


def read_npz(path: Path, keys: tuple[str, ...], *, is_any: bool = False) -> dict[str, NDArray[Any]]:
    """The named arrays of a file, or with `is_any` the existing ones of them.

    Raises KeyError for a missing one, OSError if the file cannot be opened, BadArchive for all else.
    """
    # Opened without blocking: a pipe would block until a process writes to it.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise BadArchive("not an ordinary file")
        try:
            return _read(file, keys, status.st_size, is_any)
        except BadArchive:
            raise
        except _DAMAGE as error:
            said = " ".join(str(error).split())[:200]
            raise BadArchive(said or type(error).__name__) from None


def _read(file: IO[bytes], keys: tuple[str, ...], file_bytes: int, is_any: bool) -> dict[str, NDArray[Any]]:
    if file.read(len(npy.MAGIC_PREFIX)) == npy.MAGIC_PREFIX:
        raise BadArchive("one array, not an archive of several")
    with zipfile.ZipFile(file) as archive:
        names = [member.filename for member in archive.infolist()]
        if len(set(names)) != len(names) or len(names) > MOST_MEMBERS:
            raise BadArchive(f"{len(names)} members, of which {len(names) - len(set(names))} are there twice")
        wanted = [key for key in keys if f"{key}.npy" in names or not is_any]
        if missing := [key for key in wanted if f"{key}.npy" not in names]:
            raise KeyError(missing[0])
        members = {key: archive.getinfo(f"{key}.npy") for key in wanted}
        claimed = sum(member.file_size for member in members.values())
        if claimed > max(FREE_BYTES, GROWTH * file_bytes):
            raise BadArchive(
                f"a file of {file_bytes:,} bytes that would unpack to {claimed:,}; at most {GROWTH} times "
                f"its size, or {FREE_BYTES:,}"
            )
        return {key: _array(archive, key, member) for key, member in members.items()}


def _array(archive: zipfile.ZipFile, key: str, member: zipfile.ZipInfo) -> NDArray[Any]:
    with archive.open(member) as stream:
        version = npy.read_magic(stream)
        if version not in _HEADERS:
            raise BadArchive(f"{key} is in a form of arrays that is not known here ({version})")
        shape, is_fortran, dtype = _HEADERS[version](stream)
        if dtype.hasobject:
            raise BadArchive(f"{key} holds pickled objects, which are never read")
        is_shape = all(type(side) is int and side >= 0 for side in shape) and len(shape) <= MOST_AXES
        # In Python integers, which cannot overflow.
        if not is_shape or stream.tell() + math.prod(shape) * dtype.itemsize != member.file_size:
            raise BadArchive(
                f"{key} claims to be {dtype} of shape {shape}, and {member.file_size:,} bytes are there"
            )
        flat = np.empty(math.prod(shape), dtype)
        if flat.nbytes:
            _fill(flat.view(np.uint8), stream)
    return flat.reshape(shape[::-1]).transpose() if is_fortran else flat.reshape(shape)


def _fill(octets: NDArray[np.uint8], stream: IO[bytes]) -> None:
    """Read a whole array, a piece at a time: a second copy of a large one would not fit."""
    filled = 0
    while filled < len(octets):
        piece = stream.read(min(_PIECE_BYTES, len(octets) - filled))
        if not piece:
            raise BadArchive(f"cut short: {filled:,} of {len(octets):,} bytes of an array are there")
        octets[filled : filled + len(piece)] = np.frombuffer(piece, np.uint8)
        filled += len(piece)
    # zipfile compares the checksum only at the end of a member.
    stream.read(1)
