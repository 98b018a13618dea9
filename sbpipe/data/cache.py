"""The user's cache folder: files that can be made again. It must not know what they hold."""

import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sbpipe.data.npz import BROKEN, read_npz

Arrays = dict[str, NDArray[Any]]


def cache_folder() -> Path:
    """$XDG_CACHE_HOME/sbpipe, or ~/.cache/sbpipe."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path(os.path.expanduser("~")) / ".cache") / "sbpipe"


def cached_arrays(
    name: str, make: Callable[[], Arrays], fits: Callable[[Arrays], bool], keys: tuple[str, ...]
) -> Arrays:
    """The arrays of cache file `name`, made where it is missing, broken or does not fit; a cache that cannot
    be written only warns.
    """
    path = cache_folder() / name
    try:
        arrays = read_npz(path, keys)
        if fits(arrays):
            return arrays
    except BROKEN:
        pass
    arrays = make()
    try:
        with replacing(path) as partial:
            np.savez(partial, allow_pickle=False, **arrays)
    except OSError as error:
        warnings.warn(
            f"not cached, so it will be made again next time: {path} ({error.strerror or error})",
            stacklevel=2,
        )
    return arrays


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file beside `path` that takes its place, whole, when the block ends well."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, partial = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=f".part{path.suffix}")
    os.close(handle)
    try:
        yield Path(partial)
        os.replace(partial, path)
    except BaseException:
        Path(partial).unlink(missing_ok=True)
        raise
