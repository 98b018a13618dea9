"""A selector's connection as zmq's protocol has it (ZMTP 3), over a bare Unix socket: no thread and no queue
of its own, so that one process can hold hundreds. What travels is what `SelectorPort` sends and is sent.
"""

import socket
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

from sbpipe.link.frames import Buffer

GREETING_BYTES = 64
"""The first bytes from each side of a connection."""
_MORE, _LONG, _COMMAND = 1, 2, 4
_READ_BYTES = 1 << 16
_CONNECT_S = 30.0
_SIZE = struct.Struct(">Q")


def greeting(mechanism: bytes) -> bytes:
    """The first bytes of a client of that mechanism."""
    return b"\xff" + bytes(8) + b"\x7f\x03\x00" + mechanism.ljust(20, b"\0") + bytes(32)


def frame(flags: int, body: Buffer) -> bytes:
    """One frame or command on the wire."""
    if len(body) < 256:
        return bytes((flags, len(body))) + body
    return bytes((flags | _LONG,)) + _SIZE.pack(len(body)) + body


def ready(route: bytes) -> bytes:
    """The end of the handshake: what kind of socket this is, and the route it goes by."""
    facts = ((b"Socket-Type", b"DEALER"), (b"Identity", route))
    told = (bytes((len(name),)) + name + struct.pack(">I", len(value)) + value for name, value in facts)
    return frame(_COMMAND, b"\x05READY" + b"".join(told))


def on_the_wire(frames: Iterable[Buffer]) -> bytes:
    """A message of these frames."""
    *first, last = frames
    return b"".join([*(frame(_MORE, body) for body in first), frame(0, last)])


class Peer:
    """One connection."""

    def __init__(self, path: Path, route: bytes) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(_CONNECT_S)
        self._unread = b""
        self._frames: list[Buffer] = []
        self.num_bytes = 0
        """Of all that was sent and received."""
        self._socket.connect(str(path))
        self._socket.sendall(greeting(b"NULL") + ready(route))
        # zmq loses data that comes with the handshake, so nothing is sent before it has ended on both sides.
        self._read(GREETING_BYTES)
        self._read(self._read(2)[1])

    def _read(self, num_bytes: int) -> bytes:
        read = b""
        while len(read) < num_bytes:
            piece = self._socket.recv(num_bytes - len(read))
            if not piece:
                raise EOFError("the trainer has broken off the handshake")
            read += piece
        return read

    def fileno(self) -> int:
        """For a poller."""
        return self._socket.fileno()

    def send(self, frames: Iterable[Buffer]) -> None:
        """Send a message; waits while the other side does not read."""
        message = on_the_wire(frames)
        self.num_bytes += len(message)
        self._socket.sendall(message)

    def receive(self) -> Iterator[list[Buffer]]:
        """The messages that have come, if there is something to read; EOFError at the end."""
        read = self._socket.recv(_READ_BYTES)
        if not read:
            raise EOFError("the trainer has closed the connection")
        self.num_bytes += len(read)
        unread, at = self._unread + read, 0
        while (found := _frame_at(unread, at)) is not None:
            flags, body, at = found
            if flags & _COMMAND:
                continue
            self._frames.append(body)
            if not flags & _MORE:
                yield self._frames
                self._frames = []
        self._unread = unread[at:]

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


def _frame_at(unread: bytes, at: int) -> tuple[int, bytes, int] | None:
    """Flags and body of the frame that begins there, and where the next one does; None if it is not whole."""
    if len(unread) < at + 2:
        return None
    flags, size, begin = unread[at], unread[at + 1], at + 2
    if flags & _LONG:
        if len(unread) < at + 9:
            return None
        size, begin = _SIZE.unpack_from(unread, at + 1)[0], at + 9
    end = begin + size
    return None if len(unread) < end else (flags, unread[begin:end], end)
