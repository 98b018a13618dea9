"""What killed trainers left in shared memory. No torch: the supervisor, which knows none, clears up too."""

import errno
import fcntl
import os
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
PREFIX = "sbpipe-"


def open_own(path: Path, flags: int) -> int:
    """Open a file of this user there; OSError where it is a link or another user's, who could change it."""
    fd = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    owner = os.fstat(fd).st_uid
    if owner != os.geteuid():
        os.close(fd)
        raise PermissionError(errno.EPERM, f"belongs to user {owner}", str(path))
    return fd


def leftovers() -> list[Path]:
    """This user's slots whose owner is gone: it held their lock while it lived."""
    found = []
    for path in SHARED_MEMORY.glob(f"{PREFIX}*"):
        try:
            # Everybody may leave files here, and what is another user's only that one can take away.
            fd = open_own(path, os.O_RDWR)
        except OSError:
            continue
        try:
            # The kernel drops a lock with its process, however that ended; a pid could be another's by now.
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # An empty one was just made, and its owner is about to lock it.
            if os.fstat(fd).st_size:
                found.append(path)
        except OSError:
            pass
        finally:
            os.close(fd)
    return found


def sweep() -> list[str]:
    """Remove them; their names."""
    removed = leftovers()
    for path in removed:
        path.unlink(missing_ok=True)
    return [path.name for path in removed]
