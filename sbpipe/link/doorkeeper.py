"""Limits the TCP connections to us, and how much each may send before its message is complete.

zmq keeps an unfinished message in memory, and limits neither its frames nor the number of connections; the
kernel counts the bytes that each connection has received. It knows file descriptors and bytes, neither zmq
nor messages.

A connection is a *stranger* until a message has arrived over it. Its socket belongs to zmq: it is inspected
and shut down through a duplicate, and to zmq the peer has disconnected.
"""

import contextlib
import os
import resource
import socket
import stat
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sbpipe.link.limits import MAX_CONNECTIONS, MAX_FILES, MAX_STRANGERS, MAX_UNFINISHED_BYTES, STRANGER_S

_DESCRIPTORS = "/proc/self/fd"
_TCP_INFO_BYTES = 256
# `tcpi_bytes_received` of the kernel's `struct tcp_info`.
_RECEIVED = struct.Struct("@Q")
_RECEIVED_AT = 128


@dataclass
class _Connection:
    """One accepted connection; `inode` distinguishes it from the next one with the same descriptor."""

    inode: int
    peer: str
    since: float
    received: int = 0
    settled: int = 0
    """Bytes received when a message was last known to be complete."""
    allowance: int = MAX_UNFINISHED_BYTES
    is_stranger: bool = True


class Doorkeeper:
    """Inspects the connections of some ports, and shuts down those that exceed a limit."""

    def __init__(self, ports: set[int]) -> None:
        _make_room()
        self._ports = ports
        self._connections: dict[int, _Connection] = {}
        self._foreign: set[int] = set()
        # Noted per message, so these are cheap; the next `look` evaluates them.
        self._delivered: set[int] = set()
        self._allowances: dict[int, int] = {}
        self._unwanted: set[int] = set()

    def delivered(self, descriptor: int) -> None:
        """A complete message has arrived over this connection."""
        self._delivered.add(descriptor)

    def allow(self, descriptor: int, num_bytes: int) -> None:
        """A message of this connection may have up to `num_bytes`."""
        self._allowances[descriptor] = max(num_bytes, self._allowances.get(descriptor, 0))

    def dismiss(self, descriptor: int) -> None:
        """Shut this connection down at the next `look`."""
        self._unwanted.add(descriptor)

    def look(self, now: float) -> dict[int, str]:
        """Shut down connections that exceed a limit; returns the reasons by descriptor."""
        cut: dict[int, str] = {}
        with contextlib.ExitStack() as duplicates:
            ours = {
                descriptor: duplicates.enter_context(copy)
                for descriptor, copy in self._accepted(os.listdir(_DESCRIPTORS), now)
            }
            self._connections = {descriptor: self._connections[descriptor] for descriptor in ours}
            for descriptor, copy in ours.items():
                self._measure(descriptor, copy)
            for descriptor, reason in self._complaints(now).items():
                # Its peer may have just closed it.
                with contextlib.suppress(OSError):
                    ours[descriptor].shutdown(socket.SHUT_RDWR)
                cut[descriptor] = f"{reason}, from {self._connections.pop(descriptor).peer}"
        self._delivered.clear()
        self._allowances.clear()
        self._unwanted.clear()
        return cut

    def _complaints(self, now: float) -> dict[int, str]:
        found: dict[int, str] = {}
        strangers = [item for item in self._connections.items() if item[1].is_stranger]
        guests = [item for item in self._connections.items() if not item[1].is_stranger]
        # Of strangers the oldest are cut: a peer with a key completes the handshake at once, and is no
        # stranger then.
        strangers.sort(key=lambda item: -item[1].since)
        guests.sort(key=lambda item: item[1].since)
        for descriptor, _ in [*strangers[MAX_STRANGERS:], *guests[MAX_CONNECTIONS:]]:
            found[descriptor] = "too many connections"
        for descriptor, connection in self._connections.items():
            unfinished = connection.received - connection.settled
            if unfinished > connection.allowance:
                found[descriptor] = f"{unfinished} bytes without a complete message"
            elif connection.is_stranger and now - connection.since > STRANGER_S:
                found[descriptor] = f"no message within {STRANGER_S:.0f} s"
            elif descriptor in self._unwanted:
                found[descriptor] = "no longer wanted"
        return found

    def _accepted(self, names: list[str], now: float) -> Iterator[tuple[int, socket.socket]]:
        """Our connections by descriptor, each as a duplicate that zmq cannot close meanwhile."""
        foreign, ours = set[int](), set[int]()
        for descriptor in map(int, names):
            inode = _inode(descriptor)
            # A duplicate made here may have got the descriptor with which the list itself was read.
            if inode is None or inode in ours:
                continue
            if inode in self._foreign:
                foreign.add(inode)
                continue
            with contextlib.suppress(OSError):
                copy = socket.socket(fileno=os.dup(descriptor))
                inode, peer = os.fstat(copy.fileno()).st_ino, self._peer_of(copy)
                if not peer:
                    foreign.add(inode)
                    copy.close()
                    continue
                ours.add(inode)
                before = self._connections.get(descriptor)
                if before is None or before.inode != inode:
                    self._connections[descriptor] = _Connection(inode, peer, now)
                yield descriptor, copy
        self._foreign = foreign

    def _peer_of(self, copy: socket.socket) -> str:
        """The peer of a connection that was accepted at one of our ports, or ""."""
        if copy.family not in (socket.AF_INET, socket.AF_INET6) or copy.getsockname()[1] not in self._ports:
            return ""
        # A listening socket has no peer.
        with contextlib.suppress(OSError):
            host, port = copy.getpeername()[:2]
            return f"{host}:{port}"
        return ""

    def _measure(self, descriptor: int, copy: socket.socket) -> None:
        connection = self._connections[descriptor]
        info = copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
        # A kernel older than 4.1 does not report it.
        if len(info) >= _RECEIVED_AT + _RECEIVED.size:
            connection.received = _RECEIVED.unpack_from(info, _RECEIVED_AT)[0]
        if descriptor in self._delivered:
            connection.settled, connection.is_stranger = connection.received, False
        connection.allowance = max(connection.allowance, self._allowances.get(descriptor, 0))


class FarEnd(Doorkeeper):
    """The same for connections that this process has opened: only unfinished bytes are limited there.

    `allowances` is by port of the other side.
    """

    def __init__(self, allowances: Mapping[int, int]) -> None:
        super().__init__(set(allowances))
        self._by_port = allowances

    def _complaints(self, now: float) -> dict[int, str]:
        return {
            descriptor: f"{connection.received - connection.settled} bytes without a complete message"
            for descriptor, connection in self._connections.items()
            if connection.received - connection.settled > self._by_port[_port_of(connection.peer)]
        }

    def _peer_of(self, copy: socket.socket) -> str:
        if copy.family not in (socket.AF_INET, socket.AF_INET6):
            return ""
        with contextlib.suppress(OSError):
            host, port = copy.getpeername()[:2]
            return f"{host}:{port}" if port in self._ports else ""
        return ""


def _port_of(peer: str) -> int:
    return int(peer.rpartition(":")[2])


def _make_room() -> None:
    """Raise this process's limit of open files: strangers between two looks must not use up the
    run's share.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_FILES if hard == resource.RLIM_INFINITY else min(MAX_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _inode(descriptor: int) -> int | None:
    """The inode of an open socket; None for anything else."""
    try:
        status = os.fstat(descriptor)
    except OSError:
        return None
    return status.st_ino if stat.S_ISSOCK(status.st_mode) else None
