"""A TCP proxy between a selector and its trainer: cut, one-way, late, stalling, resetting, or flipping bytes.

It passes bytes and knows no message. Latency is added to each direction; order is kept, as TCP keeps it.
"""

import collections
import contextlib
import random
import selectors
import socket
import struct
import threading
import time
from dataclasses import dataclass, field

_PIECE = 1 << 16
_MOST_HELD = 1 << 22
"""Bytes in flight at the most, in one direction of one connection."""


@dataclass
class Weather:
    """What the proxy does to passing data; it is changed while the proxy runs."""

    latency_s: float = 0.0
    is_up_cut: bool = False
    """From the selector to the trainer nothing passes."""
    is_down_cut: bool = False
    flip_share: float = 0.0
    """Share of the pieces in which one bit is flipped."""


@dataclass
class _Pipe:
    """One direction of one connection."""

    source: socket.socket
    sink: socket.socket
    is_up: bool
    held: collections.deque[tuple[float, bytes]] = field(default_factory=collections.deque)
    num_held: int = 0


class Proxy:
    """Listens at as many ports as there are targets, and passes each connection on to its target."""

    def __init__(self, targets: list[tuple[str, int]], weather: Weather) -> None:
        self.weather = weather
        self._targets = {}
        self.ports = []
        for target in targets:
            door = socket.create_server(("127.0.0.1", 0))
            self._targets[door] = target
            self.ports.append(door.getsockname()[1])
        self._pipes: list[_Pipe] = []
        self._is_over = threading.Event()
        self._is_resetting = False
        self._random = random.Random(0)
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._thread.start()

    def reset(self) -> None:
        """Break every connection, like a router that loses its state."""
        self._is_resetting = True

    def close(self) -> None:
        """Stop listening, and break all connections."""
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        with selectors.DefaultSelector() as watched:
            for door in self._targets:
                watched.register(door, selectors.EVENT_READ)
            while not self._is_over.is_set():
                for key, _ in watched.select(0.005):
                    if key.fileobj in self._targets:
                        self._accept(key.fileobj)
                self._pass_on()
                if self._is_resetting:
                    self._is_resetting = False
                    for pipe in list(self._pipes):
                        self._drop(pipe)
        for pipe in list(self._pipes):
            self._drop(pipe)
        for door in self._targets:
            door.close()

    def _accept(self, door: socket.socket) -> None:
        near, _ = door.accept()
        try:
            far = socket.create_connection(self._targets[door], timeout=2.0)
        except OSError:
            near.close()
            return
        for end in (near, far):
            end.setblocking(False)
            # Closed by a reset, not gracefully.
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._pipes += [_Pipe(near, far, is_up=True), _Pipe(far, near, is_up=False)]

    def _pass_on(self) -> None:
        now = time.monotonic()
        for pipe in list(self._pipes):
            try:
                self._take(pipe, now)
                self._give(pipe, now)
            except OSError:
                self._drop(pipe)

    def _take(self, pipe: _Pipe, now: float) -> None:
        while pipe.num_held < _MOST_HELD:
            try:
                piece = pipe.source.recv(_PIECE)
            except BlockingIOError:
                return
            if not piece:
                raise ConnectionResetError
            if self._random.random() < self.weather.flip_share:
                at = self._random.randrange(len(piece))
                piece = piece[:at] + bytes([piece[at] ^ 0x10]) + piece[at + 1 :]
            pipe.held.append((now + self.weather.latency_s, piece))
            pipe.num_held += len(piece)

    def _give(self, pipe: _Pipe, now: float) -> None:
        if self.weather.is_up_cut if pipe.is_up else self.weather.is_down_cut:
            return
        while pipe.held and pipe.held[0][0] <= now:
            due, piece = pipe.held.popleft()
            try:
                sent = pipe.sink.send(piece)
            except BlockingIOError:
                sent = 0
            pipe.num_held -= sent
            if sent < len(piece):
                pipe.held.appendleft((due, piece[sent:]))
                return

    def _drop(self, pipe: _Pipe) -> None:
        for other in list(self._pipes):
            if other is pipe or other.source is pipe.sink:
                self._pipes.remove(other)
                with contextlib.suppress(OSError):
                    other.source.close()
