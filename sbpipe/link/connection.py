"""Where a run's trainer is: `connection.json` in the run directory, written by it, read by selectors.

It must not know sockets; whether the trainer still listens there shows when a selector connects.
"""

import contextlib
import json
import os
import socket
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sbpipe.errors import ConfigError, RunDirError
from sbpipe.files import write_atomically
from sbpipe.link.addresses import Address, Endpoints, is_bare, parse
from sbpipe.runs.names.files import CONNECTION

_MAX_FILE_BYTES = 1 << 16
_KEY = "link.connect"


class NotThereYet(ConfigError):
    """The run directory has no connection.json, perhaps because the trainer has not started: try again."""


@dataclass(frozen=True)
class Connection:
    """One trainer; from a plain address only the endpoints are known."""

    control: str
    bulk: str
    session: str = ""
    pid: int = 0
    host: str = ""
    keys: str = ""

    @property
    def endpoints(self) -> Endpoints:
        """Both addresses."""
        return Endpoints(self.control, self.bulk)


def connection_of(endpoints: Endpoints, session: bytes, keys: str = "") -> Connection:
    """The connection of this process, which listens at these endpoints; `keys` is a selector's key file."""
    return Connection(
        endpoints.control, endpoints.bulk, session.hex(), os.getpid(), socket.gethostname(), keys
    )


def write_connection(run_dir: Path, connection: Connection) -> Path:
    """Write the file atomically, readable for this user only."""
    path = run_dir / CONNECTION
    try:
        write_atomically(path, json.dumps(asdict(connection), indent=2) + "\n", mode=0o600)
    except OSError as error:
        raise RunDirError(
            f"{path} cannot be written ({error.strerror}). Check the directory and the space on its disk"
        ) from None
    return path


def remove_connection(run_dir: Path, connection: Connection) -> None:
    """Remove the file at the end, unless another trainer has written its own meanwhile."""
    # The run is over: a missing or damaged file is no error any more.
    with contextlib.suppress(ConfigError, OSError):
        if read_connection(run_dir) == connection:
            (run_dir / CONNECTION).unlink(missing_ok=True)


def read_connection(run_dir: Path) -> Connection:
    """Read and check the file."""
    path = run_dir / CONNECTION
    try:
        with path.open("rb") as file:
            owner = os.fstat(file.fileno()).st_uid
            # A longer file is cut off here, and then refused as malformed.
            content = file.read(_MAX_FILE_BYTES)
    except FileNotFoundError:
        reason = f"{path} is not there (yet)"
        raise NotThereYet(
            _KEY,
            str(run_dir),
            reason,
            "Start the trainer of this run, or give its address and --keys",
        ) from None
    except OSError as error:
        raise ConfigError(
            _KEY,
            str(run_dir),
            f"{path} cannot be read ({error.strerror})",
            "Give a run directory or an address",
        ) from None
    if owner != os.geteuid():
        raise ConfigError(
            _KEY,
            str(run_dir),
            f"{path} belongs to user {owner}, who could lead this selector anywhere",
            "Run the selector as the user of the trainer, or give an address and --keys",
        )
    malformed = ConfigError(
        _KEY, str(run_dir), f"{path} is not a connection file", "Remove it and start the trainer again"
    )
    try:
        table: Any = json.loads(content)
        connection = Connection(**table)
    except (ValueError, TypeError, RecursionError):
        raise malformed from None
    blank = asdict(Connection("", ""))
    # The exact type: True would pass for the pid 1.
    if any(type(value) is not type(blank[name]) for name, value in asdict(connection).items()):
        raise malformed
    return connection


def run_dir_of(connect: str) -> Path | None:
    """The run directory that `link.connect` names; None if it is an address."""
    is_address = connect.startswith(("tcp://", "ipc://")) or (is_bare(connect) and not Path(connect).exists())
    return None if is_address else Path(connect)


def locate(connect: str) -> Connection:
    """The trainer at an address (tcp://, ipc://, host:port) or of a run directory. NotThereYet: try again."""
    if run_dir := run_dir_of(connect):
        return _reachable(connect, read_connection(run_dir))
    address = parse(_KEY, connect)
    if address.scheme == "tcp" and (address.port == 0 or address.host == "*"):
        raise ConfigError(
            _KEY,
            connect,
            "is not one place to connect to",
            "Give the host and port that the trainer printed, or its run directory",
        )
    return Connection(*address.endpoints())


def _reachable(connect: str, connection: Connection) -> Connection:
    """As seen from this machine: a trainer that listens everywhere has no address in its file."""
    control, bulk = (parse(_KEY, endpoint) for endpoint in connection.endpoints)
    is_here = connection.host in ("", socket.gethostname())
    if control.is_loopback and not is_here:
        reason = f"its trainer listens only on its own machine, {connection.host}"
        raise ConfigError(
            _KEY,
            connect,
            reason,
            "Start it with --bind tcp://0.0.0.0:0",
        )
    if not control.is_any:
        return connection
    loopback = "[::1]" if control.is_ipv6 else "127.0.0.1"
    host = loopback if is_here else connection.host
    return replace(connection, control=_at(control, host), bulk=_at(bulk, host))


def _at(address: Address, host: str) -> str:
    return replace(address, host=host).endpoints().control
