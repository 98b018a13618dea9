"""The user's cache folder: files that can be made again. It must not know what they hold."""

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sbpipe.archives import BadArchive, read_npz
from sbpipe.files import atomic_file

Arrays = dict[str, NDArray[Any]]


def cache_folder() -> Path:
    """$XDG_CACHE_HOME/sbpipe, or ~/.cache/sbpipe."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path(os.path.expanduser("~")) / ".cache") / "sbpipe"


def cached_arrays(
    name: str, make: Callable[[], Arrays], fits: Callable[[Arrays], bool], keys: tuple[str, ...]
) -> Arrays:
    """The arrays of cache file `name`, made if it is missing or does not fit. A failed write only warns."""
    path = cache_folder() / name
    try:
        arrays = read_npz(path, keys)
        if fits(arrays):
            return arrays
    except (BadArchive, OSError, KeyError):
        # Missing or damaged: it can be made again.
        pass
    arrays = make()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as file:
            np.savez(file, allow_pickle=False, **arrays)
    except OSError as error:
        warnings.warn(
            f"not cached, so it will be made again next time: {path} ({error.strerror or error})",
            stacklevel=2,
        )
    return arrays
