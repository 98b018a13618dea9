"""Attempts of another user of the host: to list, read, write, connect and signal. Must not know who tries.

Each attempt must fail; one that does not is counted, and nothing is done with it.
"""

import contextlib
import itertools
import os
import socket
from collections.abc import Callable

from sbpipe.bench.stranger.target import Target, Tried

Attempt = Callable[[str], None]


def _list(path: str) -> None:
    os.listdir(path)


def _read(path: str) -> None:
    with open(path, "rb") as file:
        file.read(1)


def _write(path: str) -> None:
    with open(path, "ab"):
        pass


def _squat(path: str) -> None:
    os.mkdir(os.path.join(path, "stranger"))


def _connect(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(path)


def _signal(pid: str) -> None:
    # 0: whether it may be signalled at all.
    os.kill(int(pid), 0)


class Attempts:
    """One after the other, and again from the first."""

    def __init__(self, target: Target, tried: Tried) -> None:
        self._tried = tried
        of_processes = [f"/proc/{pid}/{name}" for pid in target.pids for name in ("mem", "environ", "fd/0")]
        todo: list[tuple[Attempt, str]] = [
            *((act, path) for path in target.folders for act in (_list, _squat)),
            *((act, path) for path in target.files for act in (_read, _write)),
            *((_connect, path) for path in target.sockets),
            *((_read, path) for path in of_processes),
            *((_signal, str(pid)) for pid in target.pids),
        ]
        self._todo = itertools.cycle(todo)

    def once(self) -> None:
        """Try the next thing."""
        self._tried.messages += 1
        act, path = next(self._todo)
        with contextlib.suppress(OSError):
            act(path)
            self._tried.reached += 1

    def close(self) -> None:
        """Nothing to release."""
