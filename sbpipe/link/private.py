"""Folders that only this user can reach: where Unix sockets need no keys. It must not know sockets or roles.

The kernel lets only the owner and root through a folder of mode 0700. So a process that reaches a socket in
it runs under this account, and could as well attach a debugger to us.
"""

import os
import stat
from pathlib import Path

from sbpipe.errors import ConfigError

VARIABLE = "SBPIPE_RUNTIME_DIR"
"""Names the folder, where neither /tmp nor XDG_RUNTIME_DIR is suitable."""


def candidates() -> list[Path]:
    """Possible folders, best first: all are searched for trainers, the first private one is used.

    XDG_RUNTIME_DIR comes second because it is emptied at logout, while a run in tmux goes on.
    """
    if chosen := os.environ.get(VARIABLE):
        return [Path(chosen)]
    session = os.environ.get("XDG_RUNTIME_DIR", "")
    return [Path(f"/tmp/sbpipe-{os.geteuid()}"), *([Path(session) / "sbpipe"] if session else [])]


def fault_of(folder: Path) -> str:
    """Why others may reach into this folder, or ""."""
    try:
        status = os.lstat(folder)
    except OSError as error:
        return f"{folder} cannot be looked at ({error.strerror})"
    if not stat.S_ISDIR(status.st_mode):
        return f"{folder} is not a folder"
    if status.st_uid != os.geteuid():
        return f"{folder} belongs to user {status.st_uid}, not to user {os.geteuid()} who runs this"
    mode = stat.S_IMODE(status.st_mode)
    return f"{folder} has mode {mode:04o}, so others may reach into it" if mode & 0o077 else ""


def make_folder() -> Path:
    """The folder of this user's sockets, created if needed."""
    faults = []
    for folder in candidates():
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            pass
        except OSError as error:
            faults.append(f"{folder} cannot be made ({error.strerror})")
            continue
        fault = fault_of(folder)
        if not fault:
            return folder
        faults.append(fault)
    raise ConfigError(
        "link.bind",
        "auto",
        "there is no private folder for a socket: " + "; ".join(faults),
        f"Name one of mode 0700 in {VARIABLE}, or use --bind tcp://127.0.0.1:0",
    )


def require_private(key: str, given: str, path: str) -> None:
    """Refuse a Unix socket that other users could reach or replace."""
    # Linux's abstract names have no file, so no permissions limit who may connect.
    fault = "an abstract name has no owner" if path.startswith("@") else fault_of(Path(path).parent)
    if fault:
        raise ConfigError(
            key, given, fault, "Use a folder of your own of mode 0700 (chmod 700), or leave the setting out"
        )
