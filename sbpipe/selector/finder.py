"""Finds the trainer. It may be started again elsewhere; its run directory says where."""

import contextlib
import logging
import threading
import time
from pathlib import Path

from sbpipe.config import LinkConfig
from sbpipe.errors import ConfigError, PeerLost
from sbpipe.link.addresses import AUTO
from sbpipe.link.binding import Keys
from sbpipe.link.connection import Connection, NotThereYet, locate
from sbpipe.link.notices import live_runs
from sbpipe.link.opening import selector_keys
from sbpipe.link.ports import OnePeerPort
from sbpipe.link.private import candidates
from sbpipe.link.selector_port import SelectorPort
from sbpipe.runs.directory import is_finished

log = logging.getLogger("sbpipe.selector")

_LOOK_S = 0.1


class Finder:
    """Opens ports to the trainer that `link.connect` names; with `auto`, to the one running on this host."""

    def __init__(self, link: LinkConfig, selector_id: str, *, is_supervised: bool = False) -> None:
        self._link = link
        self._selector_id = selector_id
        self._is_supervised = is_supervised
        self._where = link.connect
        self._connection: Connection | None = None
        self._keys: Keys | None = None

    def find(self, is_stopped: threading.Event) -> OnePeerPort | None:
        """The first port; waits for the trainer of a run directory. None if stopped meanwhile."""
        give_up = time.monotonic() + self._link.wait_s
        is_said = False
        while not is_stopped.is_set():
            try:
                return self._open(self._locate())
            except NotThereYet as error:
                self._refuse_finished()
                if time.monotonic() > give_up:
                    raise PeerLost(f"{error} (waited {self._link.wait_s:.0f} s, link.wait_s)") from None
            if not is_said:
                log.info("waiting up to %.0f s for %s (link.wait_s)", self._link.wait_s, self._awaited())
                is_said = True
            is_stopped.wait(_LOOK_S)
        return None

    def moved(self) -> OnePeerPort | None:
        """A port to where the trainer is now, if that or the key has changed; PeerLost if the run is over."""
        # Between two trainers the file may be missing: the next beat looks again.
        try:
            connection = self._locate()
        except NotThereYet:
            self._refuse_finished()
            return None
        except ConfigError:
            return None
        with contextlib.suppress(ConfigError):
            if connection != self._connection:
                log.info("the trainer is now at %s", connection.control)
                return self._open(connection)
            if selector_keys(self._link, connection) != self._keys:
                log.info("the key file has changed: connecting to %s with it", connection.control)
                return self._open(connection)
        return None

    def _locate(self) -> Connection:
        if self._where == AUTO:
            self._where = str(_only_run())
        return locate(self._where)

    def _open(self, connection: Connection) -> OnePeerPort:
        keys = selector_keys(self._link, connection)
        port = SelectorPort(connection.endpoints, self._selector_id, self._link, keys)
        self._connection, self._keys = connection, keys
        return port

    def _refuse_finished(self) -> None:
        """Raise if the run is finished, so that no trainer will come. A supervised selector leaves that to
        its supervisor, which may be restarting the run.
        """
        if not self._is_supervised and self._where != AUTO and is_finished(Path(self._where)):
            raise PeerLost(
                f"the run in {self._where} is finished: there is nothing to select for. To run it again, "
                "start its trainer first"
            )

    def _awaited(self) -> str:
        if self._where == AUTO:
            folders = " or ".join(map(str, candidates()))
            return f"a trainer of this user on this host (its notice in {folders}); elsewhere, give --connect"
        there = "" if Path(self._where).is_dir() else ", which does not exist yet"
        return f"a trainer in {self._where}{there}"


def _only_run() -> Path:
    """The run directory of the only trainer of this user that runs on this host."""
    runs = live_runs()
    if not runs:
        raise NotThereYet(
            "link.connect",
            AUTO,
            "no trainer of this user is at work on this host",
            "Start one with: sbpipe trainer",
        )
    if len(runs) > 1:
        choices = "; ".join(f"--connect {run}" for run in sorted(runs))
        raise ConfigError(
            "link.connect",
            AUTO,
            f"{len(runs)} trainers of this user are at work here",
            f"Choose one: {choices}",
        )
    return runs[0]
