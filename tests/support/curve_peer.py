"""A peer that holds a key and speaks CURVE over a bare TCP socket, so that it can break off anywhere.

libzmq never sends half a message; an attacker does. The cipher is that of the library that pyzmq brings.
"""

import ctypes
import os
import socket
import struct
from pathlib import Path

import pytest
import zmq
from zmq.utils import z85

from sbpipe.link.binding import Keys

_LONG_S = 60.0


def _sodium() -> ctypes.CDLL:
    found = sorted((Path(zmq.__file__).parent.parent / "pyzmq.libs").glob("libsodium*"))
    if not found:
        pytest.skip("this pyzmq brings no libsodium")
    return ctypes.CDLL(str(found[0]))


class CurvePeer:
    """Connected and past the handshake; `route` is the routing id it claims."""

    _prefix = b"CurveZMQMESSAGEC"

    def __init__(self, endpoint: str, keys: Keys, route: bytes) -> None:
        self._sodium = _sodium()
        host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=_LONG_S)
        self._nonce = 0
        try:
            self.socket.sendall(_greeting(is_server=False))
            self._read(64)
            self._shake_hands(keys, route)
        except OSError:
            self.socket.close()
            raise

    def frame(self, payload: bytes, *, more: bool) -> bytes:
        """One encrypted frame of a message, `more` of which follow."""
        nonce = self._next_nonce()
        box = self._box(bytes([more]) + payload, self._prefix + nonce, self._session)
        body = b"\x07MESSAGE" + nonce + box
        return b"\x02" + struct.pack(">Q", len(body)) + body

    def reset(self) -> None:
        """Break off without a goodbye: the other side gets a reset."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def _shake_hands(self, keys: Keys, route: bytes) -> None:
        server, public, secret = (z85.decode(key) for key in (keys.peer, keys.public, keys.secret))
        short_public, short_secret = self._pair()
        nonce = self._next_nonce()
        hello = self._box(bytes(64), b"CurveZMQHELLO---" + nonce, (server, short_secret))
        self._command(b"\x05HELLO\x01\x00" + bytes(72) + short_public + nonce + hello)
        welcome = self._read_command()
        opened = self._open(welcome[24:], b"WELCOME-" + welcome[8:24], (server, short_secret))
        self._session = opened[:32], short_secret
        vouch_nonce = os.urandom(16)
        vouch = self._box(short_public + server, b"VOUCH---" + vouch_nonce, (opened[:32], secret))
        facts = _property(b"Socket-Type", b"DEALER") + _property(b"Identity", route)
        nonce = self._next_nonce()
        inner = self._box(public + vouch_nonce + vouch + facts, b"CurveZMQINITIATE" + nonce, self._session)
        self._command(b"\x08INITIATE" + opened[32:] + nonce + inner)
        assert self._read_command().startswith(b"\x05READY")

    def _pair(self) -> tuple[bytes, bytes]:
        public, secret = ctypes.create_string_buffer(32), ctypes.create_string_buffer(32)
        self._sodium.crypto_box_keypair(public, secret)
        return public.raw, secret.raw

    def _box(self, plain: bytes, nonce: bytes, keys: tuple[bytes, bytes]) -> bytes:
        out = ctypes.create_string_buffer(len(plain) + 16)
        length = ctypes.c_ulonglong(len(plain))
        assert self._sodium.crypto_box_easy(out, plain, length, nonce, *keys) == 0
        return out.raw

    def _open(self, box: bytes, nonce: bytes, keys: tuple[bytes, bytes]) -> bytes:
        out = ctypes.create_string_buffer(len(box) - 16)
        length = ctypes.c_ulonglong(len(box))
        assert self._sodium.crypto_box_open_easy(out, box, length, nonce, *keys) == 0
        return out.raw

    def _next_nonce(self) -> bytes:
        self._nonce += 1
        return struct.pack(">Q", self._nonce)

    def _command(self, body: bytes) -> None:
        is_long = len(body) > 255
        size = struct.pack(">Q", len(body)) if is_long else bytes([len(body)])
        self.socket.sendall((b"\x06" if is_long else b"\x04") + size + body)

    def _read_command(self) -> bytes:
        flags = self._read(1)[0]
        size = struct.unpack(">Q", self._read(8))[0] if flags & 2 else self._read(1)[0]
        return self._read(size)

    def _read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            piece = self.socket.recv(count - len(data))
            if not piece:
                raise ConnectionResetError
            data += piece
        return data


def _greeting(*, is_server: bool) -> bytes:
    return b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"CURVE".ljust(20, b"\0") + bytes([is_server]) + bytes(31)


def _property(name: bytes, value: bytes) -> bytes:
    return bytes([len(name)]) + name + struct.pack(">I", len(value)) + value


class CurveTrainer(CurvePeer):
    """The other side: it listens in place of a trainer whose key it holds, and says what it likes.

    `accept` waits for one selector and does the handshake with it.
    """

    _prefix = b"CurveZMQMESSAGES"

    def __init__(self, keys: Keys) -> None:
        self._sodium = _sodium()
        self._keys, self._nonce = keys, 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(_LONG_S)
        self.endpoint = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"

    def accept(self) -> None:
        """Let one selector in."""
        self.socket, _ = self._listener.accept()
        self.socket.settimeout(_LONG_S)
        self.socket.sendall(_greeting(is_server=True))
        self._read(64)
        theirs = self._read_command()[80:112]
        short_public, short_secret = self._pair()
        nonce = os.urandom(16)
        opened = short_public + bytes(96)
        secret = z85.decode(self._keys.secret)
        self._command(b"\x07WELCOME" + nonce + self._box(opened, b"WELCOME-" + nonce, (theirs, secret)))
        self._read_command()
        self._session = theirs, short_secret
        facts = _property(b"Socket-Type", b"ROUTER") + _property(b"Identity", b"")
        counted = self._next_nonce()
        self._command(b"\x05READY" + counted + self._box(facts, b"CurveZMQREADY---" + counted, self._session))

    def close(self) -> None:
        """Listen no more."""
        self._listener.close()
        self.socket.close()
