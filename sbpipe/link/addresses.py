"""Addresses as people write them: `tcp://host:port`, `ipc://path`, `host:port`. Pure; it opens nothing."""

import ipaddress
import re
from dataclasses import dataclass
from typing import NamedTuple

from sbpipe.errors import ConfigError

_TCP = re.compile(r"tcp://(\[[0-9A-Fa-f:.]+(?:%[\w.-]+)?\]|[A-Za-z0-9._-]+|\*):(\d{1,5}|\*)", re.ASCII)
_BARE = re.compile(r"(\[[0-9A-Fa-f:.]+(?:%[\w.-]+)?\]|[A-Za-z0-9._-]+):\d{1,5}", re.ASCII)
_FORMS = "Write tcp://127.0.0.1:5570, tcp://[::1]:5570, tcp://host:5570, ipc:///path or auto"
AUTO = "auto"
"""Instead of an address: for a trainer a private socket of this user, for a selector the trainer that has
one.
"""
# The kernel's limit for a path of a local socket, its final zero left out.
_MAX_IPC_BYTES = 107


class Endpoints(NamedTuple):
    """The addresses of the two socket pairs."""

    control: str
    bulk: str


@dataclass(frozen=True)
class Address:
    """One address; for `ipc` the host is the path and the port is 0."""

    scheme: str
    host: str
    port: int = 0

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        if self.scheme == "ipc" or self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host.strip("[]")).is_loopback
        except ValueError:
            return False

    @property
    def is_any(self) -> bool:
        """Whether it stands for every network of this machine."""
        return self.scheme == "tcp" and self.host in ("*", "0.0.0.0", "[::]")

    @property
    def is_free_choice(self) -> bool:
        """Whether the system chooses the port."""
        return self.scheme == "tcp" and self.port == 0

    @property
    def is_ipv6(self) -> bool:
        """Whether it is written as an IPv6 number."""
        return self.scheme == "tcp" and self.host.startswith("[")

    def endpoints(self) -> Endpoints:
        """The control address and the bulk address beside it."""
        if self.scheme == "ipc":
            return Endpoints(f"ipc://{self.host}", f"ipc://{self.host}.bulk")
        # A listening socket takes numbers only, and a connecting one may pick ::1 where the trainer listens
        # on 127.0.0.1.
        host = "127.0.0.1" if self.host == "localhost" else self.host
        return Endpoints(f"tcp://{host}:{self.port}", f"tcp://{host}:{self.port + 1}")


def is_bare(text: str) -> bool:
    """Whether the text is `host:port` without a scheme."""
    return _BARE.fullmatch(text) is not None


def parse(key: str, text: str) -> Address:
    """The address in a setting; `key` is the setting to name when it is malformed."""
    if text.startswith("ipc://"):
        return _parse_ipc(key, text)
    match = _TCP.fullmatch(f"tcp://{text}" if is_bare(text) else text)
    if match is None:
        raise ConfigError(key, text, "is not an address", _FORMS)
    host, port = match[1], 0 if match[2] == "*" else int(match[2])
    if host.startswith("["):
        try:
            ipaddress.IPv6Address(host[1:-1])
        except ValueError:
            raise ConfigError(key, text, f"{host} is not an IPv6 number", _FORMS) from None
    if port > 65_534:
        raise ConfigError(key, text, "the next port is used too, so the port is at most 65534", _FORMS)
    return Address("tcp", host, port)


def _parse_ipc(key: str, text: str) -> Address:
    path = text.removeprefix("ipc://")
    if path in ("", "*") or "\0" in path:
        raise ConfigError(key, text, "has no path", _FORMS)
    if len(f"{path}.bulk".encode()) > _MAX_IPC_BYTES:
        raise ConfigError(
            key,
            text,
            f"the path with .bulk behind it is longer than {_MAX_IPC_BYTES} bytes",
            "Use a shorter one, for instance in /tmp",
        )
    return Address("ipc", path)
