"""Writes files that exist whole or not at all. It must not know what they hold."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


@contextmanager
def atomic_file(path: Path, *, mode: int = 0o666, is_durable: bool = False) -> Iterator[BinaryIO]:
    """An open file that replaces `path` if the block ends well, and is removed if it does not.

    `mode` is cut by the umask, as for any new file; `is_durable` waits until content and name are on disk.
    """
    # Two processes may write the same file at once (the roles share a cache), so each has its own name. It is
    # beside `path`, because a rename is atomic only within one file system.
    partial = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
    try:
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            yield file
            if is_durable:
                # Without it a power cut may leave the new name on an empty file.
                file.flush()
                os.fsync(file.fileno())
        partial.replace(path)
        if is_durable:
            sync_folder(path.parent)
    except BaseException:
        # The folder may be gone or not writable, but the error to report is the first one.
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on disk: a rename alone may be undone by a power cut."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folder(folder: Path) -> None:
    """Make a folder if it does not exist, and wait until its name is on disk."""
    if not folder.exists():
        folder.mkdir()
        sync_folder(folder.parent)


def write_atomically(path: Path, text: str, *, mode: int = 0o666) -> None:
    """Write a text file whole or not at all."""
    with atomic_file(path, mode=mode) as file:
        file.write(text.encode())
