"""Attempts over TCP without a key: noise, half handshakes, messages without a key, silence, resets.

It speaks ZMTP over bare sockets, so that it can break off anywhere, and never waits for an answer.
"""

import contextlib
import itertools
import os
import random
import socket
import struct
from collections import deque

from sbpipe.bench.scale.peer import GREETING_BYTES, greeting
from sbpipe.bench.stranger.target import Target, Tried

_SPEAKING, _SILENT = 32, 96
"""Connections held at a time; there are more silent ones than a trainer tolerates."""
_MESSAGES = 8
"""Messages on one connection, if it lasts so long."""
_RESET = struct.pack("ii", 1, 0)


def _frame(flags: int, body: bytes) -> bytes:
    return bytes([flags | 2]) + struct.pack(">Q", len(body)) + body


def _noise() -> list[bytes]:
    return [os.urandom(4 << number) for number in range(_MESSAGES)]


def _without_mechanism() -> list[bytes]:
    ready = _frame(4, b"\x05READY\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER")
    return [greeting(b"NULL"), ready, *(_frame(1, b"SBPL" + os.urandom(38)) for _ in range(_MESSAGES - 2))]


def _with_a_wrong_key() -> list[bytes]:
    hello = b"\x05HELLO\x01\x00" + bytes(72) + os.urandom(120)
    return [greeting(b"CURVE"), _frame(4, hello), *(_frame(0, os.urandom(256)) for _ in range(_MESSAGES - 2))]


def _of_a_huge_frame() -> list[bytes]:
    announced = b"\x06" + struct.pack(">Q", 1 << 62)
    return [greeting(b"CURVE"), announced, *(os.urandom(1024) for _ in range(_MESSAGES - 2))]


def _half_open() -> list[bytes]:
    return [greeting(b"CURVE")[:10]]


SCRIPTS = (_noise, _without_mechanism, _with_a_wrong_key, _of_a_huge_frame, _half_open)


class _Connection:
    """One connection and what is still to be sent over it."""

    def __init__(self, port: int, script: list[bytes]) -> None:
        self._left = deque(script)
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=1.0)
        self._socket.setblocking(False)
        self.received = 0

    @property
    def is_done(self) -> bool:
        return not self._left

    def say(self) -> None:
        """Send the next message; OSError if the other side has cut the connection."""
        self._socket.send(self._left.popleft())
        self._hear()

    def close(self, *, is_reset: bool) -> None:
        with contextlib.suppress(OSError):
            self._hear()
        if is_reset:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._socket.close()

    def _hear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self.received += len(self._socket.recv(1 << 16))


class Flood:
    """Many connections at a time, which send their next messages in turn."""

    def __init__(self, target: Target, tried: Tried) -> None:
        self._tried = tried
        self._random = random.Random(0)
        self._ports, self._scripts = itertools.cycle(target.ports), itertools.cycle(SCRIPTS)
        self._speaking: deque[_Connection] = deque()
        self._silent: deque[_Connection] = deque()

    def once(self) -> None:
        """Send one message."""
        self._tried.messages += 1
        try:
            if len(self._speaking) < _SPEAKING:
                self._speaking.append(_Connection(next(self._ports), next(self._scripts)()))
                self._tried.connections += 1
        except OSError:
            return
        connection = self._speaking.popleft()
        try:
            connection.say()
        except OSError:
            self._drop(connection)
            return
        (self._silent if connection.is_done else self._speaking).append(connection)
        if len(self._silent) > _SILENT:
            self._drop(self._silent.popleft())

    def close(self) -> None:
        """Break all of them off."""
        while self._speaking or self._silent:
            self._drop((self._speaking or self._silent).popleft())

    def _drop(self, connection: _Connection) -> None:
        connection.close(is_reset=self._random.random() < 0.5)
        self._tried.leaked_bytes += max(0, connection.received - GREETING_BYTES)
