"""Where the trainer is now: it may be started again elsewhere, and its run directory tells."""

import contextlib
import logging
import threading
import time
from pathlib import Path

from sbpipe.config import LinkConfig
from sbpipe.errors import ConfigError, PeerLost
from sbpipe.link.connection import Connection, NotThereYet, locate
from sbpipe.link.opening import open_selector_port
from sbpipe.link.ports import OnePeerPort

log = logging.getLogger("sbpipe.selector")


class Finder:
    """Opens ports to the trainer that `link.connect` names."""

    def __init__(self, link: LinkConfig, selector_id: str) -> None:
        self._link = link
        self._selector_id = selector_id
        self._connection: Connection | None = None

    def find(self, is_stopped: threading.Event) -> OnePeerPort | None:
        """The first port; waits for the trainer of a run directory. None if stopped meanwhile."""
        give_up = time.monotonic() + self._link.wait_s
        is_said = False
        while not is_stopped.is_set():
            try:
                return self._open(locate(self._link.connect))
            except NotThereYet as error:
                if time.monotonic() > give_up:
                    raise PeerLost(f"{error} (waited {self._link.wait_s:.0f} s, link.wait_s)") from None
            if not is_said:
                there = "" if Path(self._link.connect).is_dir() else ", which does not exist yet"
                log.info(
                    "waiting up to %.0f s for a trainer in %s%s (link.wait_s)",
                    self._link.wait_s,
                    self._link.connect,
                    there,
                )
                is_said = True
            is_stopped.wait(0.1)
        return None

    def moved(self) -> OnePeerPort | None:
        """A port to where the trainer is now, if that is elsewhere than before."""
        # Between two trainers the file may be missing: the next beat looks again.
        with contextlib.suppress(ConfigError):
            connection = locate(self._link.connect)
            if connection != self._connection:
                log.info("the trainer is now at %s", connection.control)
                return self._open(connection)
        return None

    def _open(self, connection: Connection) -> OnePeerPort:
        port = open_selector_port(self._link, self._selector_id)
        self._connection = connection
        return port
