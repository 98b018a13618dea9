"""The control: the stranger does the same work against this, which is no run.

Over TCP a process that accepts, greets as zmq does, and closes what is no handshake; on the host a private
folder with the same names. So what the work itself takes of the machine does not count as an effect on the
run.
"""

import selectors
import socket
import sys
from pathlib import Path

from sbpipe.bench.scale.peer import GREETING_BYTES, greeting
from sbpipe.bench.stranger.target import Target


def listen() -> None:
    """Two ports, told on standard output; until it is killed."""
    poll = selectors.DefaultSelector()
    listeners = [socket.create_server(("127.0.0.1", 0), backlog=512) for _ in range(2)]
    for listener in listeners:
        listener.setblocking(False)
        poll.register(listener, selectors.EVENT_READ)
    sys.stdout.write(" ".join(str(listener.getsockname()[1]) for listener in listeners) + "\n")
    sys.stdout.flush()
    heard: dict[socket.socket, int] = {}
    while True:
        for key, _ in poll.select():
            one = key.fileobj
            assert isinstance(one, socket.socket)
            try:
                if one in listeners:
                    stranger, _ = one.accept()
                    stranger.setblocking(False)
                    poll.register(stranger, selectors.EVENT_READ)
                    heard[stranger] = 0
                    stranger.send(greeting(b"CURVE"))
                    continue
                heard[one] += len(one.recv(1 << 16)) or 2 * GREETING_BYTES
            except OSError:
                heard[one] = 2 * GREETING_BYTES
            # More than a greeting came, and it cannot be a handshake.
            if one in heard and heard[one] > GREETING_BYTES:
                del heard[one]
                poll.unregister(one)
                one.close()


def private_copy(target: Target, folder: Path) -> Target:
    """A private folder with as many names in it, none of which leads to a run."""
    inside = folder / "decoy"
    inside.mkdir(mode=0o700)
    for path in (*target.files, *target.sockets):
        (inside / Path(path).name).touch(mode=0o600)
    return Target(
        folders=(str(inside),) * len(target.folders),
        files=tuple(str(inside / Path(path).name) for path in target.files),
        sockets=tuple(str(inside / Path(path).name) for path in target.sockets),
        pids=(1,) * len(target.pids),
    )


if __name__ == "__main__":
    listen()
