"""Opens ports from settings, and leads selectors to a trainer: key, connection file, notice.
Knows no loop.
"""

import contextlib
import logging
from dataclasses import replace
from pathlib import Path

from sbpipe.config import LinkConfig
from sbpipe.errors import ConfigError, RunDirError
from sbpipe.link.addresses import AUTO, parse
from sbpipe.link.binding import Keys
from sbpipe.link.connection import Connection, connection_of, remove_connection, write_connection
from sbpipe.link.keyring import Keyring
from sbpipe.link.keys import TrainerKey, load_keys, new_keys, selector_of, write_selector_keys
from sbpipe.link.notices import Notice, new_socket, remove_socket
from sbpipe.link.selector_port import SelectorPort
from sbpipe.link.trainer_port import TrainerPort
from sbpipe.runs.names.files import SELECTOR_KEY

log = logging.getLogger("sbpipe.link")


class Listener:
    """A trainer's port at `link.bind`, open only to this user and to holders of keys.

    `auto` is a Unix socket in a private folder. TCP is always encrypted, with the key of `link.keys` or with
    one that is made here and never stored. Selectors of this user find their key in the run directory.
    """

    def __init__(self, link: LinkConfig) -> None:
        self._is_own_socket = link.bind == AUTO
        if self._is_own_socket:
            link = replace(link, bind=f"ipc://{new_socket()}")
        self._selector_keys: Keys | None = None
        keyring = None
        if parse("link.bind", link.bind).scheme == "tcp":
            own = TrainerKey(Path(link.keys)) if link.keys else None
            trainer = own.keys if own else new_keys()[0]
            self._selector_keys = selector_of(trainer)
            keyring = Keyring(
                trainer,
                Path(link.keys) if link.keys else None,
                self._selector_keys.public,
                own.refresh if own else lambda: None,
            )
        self.port = TrainerPort(link, keyring)
        self.port.on_rotation = self._rotated
        self._connection: Connection | None = None
        self._notice: Notice | None = None
        self._run_dir = Path()

    def announce(self, run_dir: Path) -> None:
        """Lead selectors here: by the run directory, or by a notice if they are given none."""
        self._run_dir, key = run_dir, run_dir / SELECTOR_KEY
        try:
            if self._selector_keys is not None:
                write_selector_keys(key, self._selector_keys)
        except OSError as error:
            raise RunDirError(
                f"{key} cannot be written ({error.strerror}). Check the space on its disk"
            ) from None
        keys = str(key) if self._selector_keys is not None else ""
        self._connection = connection_of(self.port.endpoints, self.port.session, keys)
        write_connection(run_dir, self._connection)
        # Not needed over TCP: only selectors without any address or run directory use it.
        with contextlib.suppress(ConfigError):
            self._notice = Notice(run_dir)

    def _rotated(self, keys: Keys) -> None:
        """The trainer has a new key: write it to the run directory for selectors of this user."""
        if self._selector_keys is None or self._connection is None:
            return
        self._selector_keys = replace(self._selector_keys, peer=keys.public)
        try:
            write_selector_keys(self._run_dir / SELECTOR_KEY, self._selector_keys)
        except OSError as error:
            log.warning("the new key is not in %s (%s)", self._run_dir, error.strerror)

    def withdraw(self) -> None:
        """Remove what `announce` wrote; the port is closed by its user."""
        if self._notice is not None:
            self._notice.remove()
        if self._connection is not None:
            remove_connection(self._run_dir, self._connection)
        if self._selector_keys is not None:
            (self._run_dir / SELECTOR_KEY).unlink(missing_ok=True)
        if self._is_own_socket:
            remove_socket(self.port.endpoints.control)


def selector_keys(link: LinkConfig, connection: Connection) -> Keys | None:
    """The keys by which a selector reaches a trainer: those of `link.keys` or of its run directory."""
    place = link.keys or connection.keys
    return load_keys(Path(place), "selector") if place and connection.control.startswith("tcp://") else None


def open_selector_port(link: LinkConfig, selector_id: str, connection: Connection) -> SelectorPort:
    """Connect to a trainer."""
    return SelectorPort(connection.endpoints, selector_id, link, selector_keys(link, connection))
