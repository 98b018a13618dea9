"""Binds the socket that serves the page, or says why that failed. Knows no web server."""

import errno
import ipaddress
import socket

from sbpipe.errors import ConfigError

HOST = "127.0.0.1"
PORT = 8770
NUM_TRIED = 30
ANY = ("0.0.0.0", "::")
"""Every address of this machine."""


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a host's name or address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def trusted_hosts(host: str) -> list[str]:
    """Host names that a request may use; any other could come from another page (DNS rebinding)."""
    named = {"localhost", "127.0.0.1", "[::1]", f"[{host}]" if ":" in host else host}
    if host in ANY:
        name = socket.gethostname()
        named |= {name, socket.getfqdn()} | {str(found[4][0]) for found in _addresses(name, 0)}
    return sorted(named)


def url(host: str, port: int) -> str:
    """The page's address, for a person."""
    shown = socket.gethostname() if host in ANY else f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}/"


def _addresses(host: str, port: int) -> list[tuple[int, int, int, str, tuple[str | int, ...]]]:
    try:
        return list(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))  # type: ignore[arg-type]
    except OSError:
        return []


def listen(host: str, port: int | None) -> socket.socket:
    """A bound socket; without a port, the first free one from 8770 on."""
    if port is not None and not 0 <= port < 65536:
        raise ConfigError("--port", port, "must lie between 0 and 65535", "Leave it out to get a free one")
    found = _addresses(host, 0)
    if not found:
        raise ConfigError(
            "--host", host, "this name has no address", "Use 127.0.0.1, or an address of this machine"
        )
    family = socket.AddressFamily(found[0][0])
    for candidate in [port] if port is not None else range(PORT, PORT + NUM_TRIED):
        listener = socket.socket(family, socket.SOCK_STREAM)
        # Connections of a server that has just ended would keep the port taken for a minute.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, candidate))
            listener.listen(64)
            return listener
        except OSError as error:
            listener.close()
            if error.errno != errno.EADDRINUSE:
                key, given = (
                    ("--port", candidate) if error.errno in (errno.EACCES, errno.EPERM) else ("--host", host)
                )
                raise ConfigError(
                    key, given, f"cannot be listened on ({error.strerror})", "Choose another"
                ) from None
    if port is not None:
        raise ConfigError(
            "--port", port, "another program listens there", "Stop it, or leave --port out to get a free one"
        )
    raise ConfigError("--port", None, f"{PORT} to {PORT + NUM_TRIED - 1} are all taken", "Name a free one")
