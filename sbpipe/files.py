"""Files that are there whole or not at all. It must not know what they hold."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def atomic_file(path: Path, *, mode: int = 0o666, is_durable: bool = False) -> Iterator[BinaryIO]:
    """An open file that takes the place of `path` when the block ends well, and is removed when it does not.

    `mode` is cut by the umask, as for any new file; `is_durable` waits until the content is on disk.
    """
    # Two processes may write the same file at once (the roles share a cache), so each has a name of its own.
    # It stands beside `path`, because a rename is atomic only within one file system.
    partial = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
    try:
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            yield file
            if is_durable:
                # Without it a power cut may leave the new name on an empty file.
                file.flush()
                os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def write_atomically(path: Path, text: str, *, mode: int = 0o666) -> None:
    """Write a text file whole or not at all."""
    with atomic_file(path, mode=mode) as file:
        file.write(text.encode())
