"""One checkpoint: torch's archive, followed by one line with a digest over every byte before it.

`torch.load(path, weights_only=True)` reads it too. Of tensors that are sharded over ranks it holds an index
and the digests of the files with the shares. Those files are written first, and are invalid without it. This
file must not know what a checkpoint holds, nor which others exist.
"""

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path
from pickle import UnpicklingError
from typing import IO, Any, BinaryIO, cast

import numpy as np
import torch

from sbpipe.files import atomic_file
from sbpipe.trainer.summed import Summed, add, check_room, new_digest

FORMAT = 5
FORMAT_WITH_SHARES = 6
"""The format of one with files beside it: a version that knows only FORMAT must not take it for complete."""
SHARES = "shares"
"""The key of the index of the files beside it."""
_LINE = "sbpipe checkpoint {:4d} blake2b {}\n"
_PATTERN = re.compile(rb"sbpipe checkpoint +(\d+) blake2b ([0-9a-f]{64})\n")
_LINE_BYTES = len(_LINE.format(FORMAT, 64 * "0"))


class Damaged(Exception):
    """A checkpoint that cannot be used, and why."""


def write(path: Path, step: int, state: dict[str, Any], on_piece: Callable[[], None]) -> None:
    """Write what `frozen` returned to disk, whole or not at all; `on_piece` is called as it goes on.

    Raises OSError.
    """
    check_room(path.parent, _num_bytes(state))
    kind = FORMAT_WITH_SHARES if SHARES in state else FORMAT
    with atomic_file(path, is_durable=True) as file:
        summed = Summed(file, on_piece)
        try:
            # torch only calls `write` of a file.
            torch.save({"format": kind, "step": step, **state}, cast("IO[bytes]", summed))
        except RuntimeError:
            # torch replaces the error of a failed write by one of its own.
            raise summed.error or OSError(errno.EIO, "torch could not write it") from None
        file.write(_LINE.format(kind, summed.digest.hexdigest()).encode())


def _num_bytes(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    return sum(map(_num_bytes, value.values())) if isinstance(value, dict) else 0


def read(path: Path, *, is_whole: bool = True) -> dict[str, Any]:
    """What was written; raises `Damaged` unless every byte is unchanged, also in the files beside it.

    Without `is_whole`, sharded tensors are replaced by marks: each rank reads its own share of them.
    """
    try:
        with path.open("rb") as file:
            kind = _check(file)
            file.seek(0)
            state = torch.load(file, weights_only=True, map_location="cpu")
        if state.get("format") != kind or (SHARES in state) != (kind == FORMAT_WITH_SHARES):
            raise Damaged("its format is not what its last line says")
        if SHARES in state:
            # Imported only here: it loads torch.distributed.checkpoint, a second that a lone trainer need not
            # wait.
            from sbpipe.trainer import checkpoint_shares

            folder = path.parent / Path(state[SHARES]["folder"]).name
            fault = checkpoint_shares.fault_of(folder, state[SHARES])
            if fault:
                raise Damaged(fault)
            if is_whole:
                state = checkpoint_shares.read_whole(state, folder, state.pop(SHARES))
    except (OSError, RuntimeError, EOFError, ValueError, KeyError, TypeError, UnpicklingError) as error:
        raise Damaged(str(error).partition("\n")[0] or type(error).__name__) from None
    return dict(thawed(state))


def _check(file: BinaryIO) -> int:
    """The format; raises `Damaged` unless every byte is as it was written."""
    num_bytes = os.fstat(file.fileno()).st_size - _LINE_BYTES
    file.seek(max(0, num_bytes))
    line = _PATTERN.fullmatch(file.read())
    if line is None:
        raise Damaged("its last line is no digest: it was cut short, or an older version wrote it")
    if int(line[1]) not in (FORMAT, FORMAT_WITH_SHARES):
        raise Damaged(f"it has format {int(line[1])}, this version reads {FORMAT} and {FORMAT_WITH_SHARES}")
    file.seek(0)
    digest = new_digest()
    add(digest, file, num_bytes, lambda: None)
    if digest.hexdigest().encode() != line[2]:
        raise Damaged("its digest does not match: at least one byte has changed since it was written")
    return int(line[1])


# NumPy arrays travel as tensors under a marker, so that reading needs nothing but torch's safe loader.
_MARK = "__array__"


def frozen(value: Any) -> Any:
    """A state in the form in which it is written; its arrays are copied, so they may change afterwards."""
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
