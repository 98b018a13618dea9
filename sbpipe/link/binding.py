"""What opening an address requires, and how it can fail, each with a way out. It must not know zmq."""

import errno
import os
import socket
import stat
from dataclasses import dataclass

from sbpipe.errors import ConfigError
from sbpipe.link.addresses import Address
from sbpipe.link.kinds import NAME


@dataclass(frozen=True)
class Keys:
    """One side's CURVE keys, in Z85: its own pair and the public key of the other side."""

    public: str
    secret: str
    peer: str


_FAULTS = {
    errno.EADDRINUSE: (
        "something listens there already",
        "Another trainer may be running; use --bind tcp://127.0.0.1:0 for any free pair of ports",
    ),
    errno.EADDRNOTAVAIL: (
        "this machine has no such address",
        "Use one of its own addresses, for instance tcp://127.0.0.1:5570",
    ),
    errno.ENODEV: (
        "this machine has no such address",
        "Write a number, for instance tcp://127.0.0.1:5570 or tcp://0.0.0.0:5570",
    ),
    errno.EACCES: (
        "it is not allowed to this user",
        "Use a port from 1024 upwards, or a path that you may write to",
    ),
    errno.ENOENT: ("its folder does not exist", "Make the folder first"),
}


def require_keys(key: str, given: str, address: Address, *, has_keys: bool) -> None:
    """Refuse a TCP address without keys, on one host too: other users may be logged in there."""
    if address.scheme == "tcp" and not has_keys:
        reason = "others can reach this address, and without a key they could steer the training"
        raise ConfigError(
            key,
            given,
            reason,
            "Use --connect RUN_DIR on the trainer's host; elsewhere --keys with a key of its `sbpipe keys`",
        )


def require_name(selector_id: str) -> None:
    """Refuse a name that the trainer would drop."""
    if not NAME.fullmatch(selector_id):
        raise ConfigError(
            "selector_id",
            selector_id,
            "must be 1 to 64 of A-Z a-z 0-9 . _ : @ -, the first a letter or digit",
            "Choose another name",
        )


def refuse_ipc_in_use(given: str, address: Address) -> None:
    """Refuse a path in use: listening there would silently replace another trainer's socket, or a file."""
    if address.scheme != "ipc":
        return
    for endpoint in address.endpoints():
        path = endpoint.removeprefix("ipc://")
        if os.path.exists(path) and not stat.S_ISSOCK(os.stat(path).st_mode):
            raise ConfigError(
                "link.bind", given, f"{path}: it is not a socket", "Choose a path where nothing is"
            )
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            # zmq writes Linux's abstract names with an @, the kernel with a zero byte.
            if probe.connect_ex(f"\0{path[1:]}" if path.startswith("@") else path) == 0:
                raise bind_error(given, endpoint, errno.EADDRINUSE)


def bind_error(given: str, endpoint: str, number: int) -> ConfigError:
    """The error of a failed bind; `endpoint` is the one of the two that failed."""
    reason, way_out = _FAULTS.get(
        number,
        (f"cannot be opened ({os.strerror(number)})", "Use tcp://127.0.0.1:0 for any free pair of ports"),
    )
    return ConfigError("link.bind", given, f"{endpoint}: {reason}", way_out)
