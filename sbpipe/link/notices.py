"""Which trainers of this user run on this host: each has a notice in the private folder. Knows no zmq.

FOLDER/TOKEN.run      the run directory; locked by the trainer while it lives
FOLDER/TOKEN          a trainer's Unix socket, TOKEN.bulk beside it
"""

import contextlib
import fcntl
import os
import secrets
import socket
import time
from pathlib import Path

from sbpipe.link.private import candidates, fault_of, make_folder

_SUFFIX = ".run"
# A socket that refuses connections is of a killed trainer, or of one that is about to listen.
_ABANDONED_S = 60.0
_MAX_BYTES = 4096


def new_socket() -> Path:
    """A path for a new trainer's socket."""
    folder = make_folder()
    _sweep(folder)
    return folder / secrets.token_hex(6)


class Notice:
    """Names a run directory, until it is removed or its process ends."""

    def __init__(self, run_dir: Path) -> None:
        folder = make_folder()
        self._path = folder / f"{secrets.token_hex(6)}{_SUFFIX}"
        # Locked before it gets its name: an unlocked notice is of a dead trainer, and is removed.
        hidden = self._path.with_suffix(".new")
        self._descriptor = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(self._descriptor, os.fsencode(run_dir))
        hidden.rename(self._path)

    def remove(self) -> None:
        """Remove the notice."""
        self._path.unlink(missing_ok=True)
        os.close(self._descriptor)


def live_runs() -> list[Path]:
    """The run directories of this user's running trainers."""
    folders = [folder for folder in candidates() if not fault_of(folder)]
    notices = [path for folder in folders for path in sorted(folder.glob(f"*{_SUFFIX}"))]
    return [run for run in map(_run_of, notices) if run is not None]


def remove_socket(control: str) -> None:
    """Remove the files of a Unix socket that was made by `new_socket`."""
    path = control.removeprefix("ipc://")
    for name in (path, f"{path}.bulk"):
        Path(name).unlink(missing_ok=True)


def _run_of(notice: Path) -> Path | None:
    """The run directory in a notice, if its trainer lives; else the notice is removed."""
    try:
        descriptor = os.open(notice, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            notice.unlink(missing_ok=True)
            return None
        return Path(os.fsdecode(os.read(descriptor, _MAX_BYTES)))
    finally:
        os.close(descriptor)


def _sweep(folder: Path) -> None:
    """Remove the sockets that killed trainers have left."""
    now = time.time()
    for path in folder.iterdir():
        with contextlib.suppress(OSError):
            is_old = now - path.lstat().st_mtime > _ABANDONED_S
            if path.suffix != _SUFFIX and is_old and not _is_listening(path):
                path.unlink()


def _is_listening(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(str(path)) == 0
