"""What killed trainers left in shared memory. No torch: the supervisor, which has none, cleans up too."""

import errno
import fcntl
import os
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
PREFIX = "sbpipe-"


def open_own(path: Path, flags: int) -> int:
    """Open a file of this user in shared memory; OSError if it is a link or another user's."""
    fd = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    owner = os.fstat(fd).st_uid
    if owner != os.geteuid():
        os.close(fd)
        raise PermissionError(errno.EPERM, f"belongs to user {owner}", str(path))
    return fd


def leftovers() -> list[Path]:
    """This user's slots whose owner is gone: their lock is free."""
    found = []
    for path in SHARED_MEMORY.glob(f"{PREFIX}*"):
        try:
            # Any user may create files here, and only the owner can remove one.
            fd = open_own(path, os.O_RDWR)
        except OSError:
            continue
        try:
            # The kernel drops a lock when its process ends, in whatever way; a pid could have been reused.
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # An empty file was just created, and its owner is about to lock it.
            if os.fstat(fd).st_size:
                found.append(path)
        except OSError:
            pass
        finally:
            os.close(fd)
    return found


def sweep() -> list[str]:
    """Remove the leftovers; returns their names."""
    removed = leftovers()
    for path in removed:
        path.unlink(missing_ok=True)
    return [path.name for path in removed]
