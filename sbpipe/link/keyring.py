"""Which selectors' keys a trainer accepts while it runs: a folder of public keys, read again when it changes.

    FOLDER/trainer.key          the trainer's own pair
    FOLDER/allowed/NAME.pub     a public key each; to remove one is to revoke it

It must not know zmq, nor what is done with a connection whose key was revoked. A folder without `allowed`, as
made by older versions, accepts the one key that trainer.key names.
"""

import logging
import os
import re
import stat
import time
from collections.abc import Callable
from pathlib import Path

from sbpipe.errors import ConfigError
from sbpipe.link.binding import Keys
from sbpipe.link.kinds import Z85

log = logging.getLogger("sbpipe.link")

ALLOWED = "allowed"
SUFFIX = ".pub"
FIRST = "selector"
"""The name of the key that is made together with the trainer's."""
OWN = "(run directory)"
"""The name of the key that a run makes for selectors which are given its directory."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_KEY = "link.keys"
_MAX_FILE_BYTES = 256
# File system timestamps may be this coarse: a folder read so soon after a change is read once more.
_COARSE_NS = 2_000_000_000


class Keyring:
    """The trainer's own pair, and the names of accepted selectors by public key."""

    def __init__(
        self,
        keys: Keys,
        folder: Path | None = None,
        own: str = "",
        renewed: Callable[[], Keys | None] = lambda: None,
    ) -> None:
        """Without a folder, the peer of `keys` is always accepted; so is, in any case, the public key `own`.

        `renewed` returns the trainer's own pair if that has changed.
        """
        self.keys = keys
        self._renewed = renewed
        self._own = {own: OWN} if own else {}
        self.allowed = {keys.peer: FIRST} | self._own
        self._folder = None if folder is None else folder / ALLOWED
        self._seen: tuple[int, bool] | None = None
        if self._folder is not None and self._folder.exists():
            self._seen = self._state(self._folder)
            self.allowed = read_allowed(self._folder) | self._own

    def rotate(self) -> bool:
        """Take over the trainer's own pair if it has changed; returns whether it has."""
        keys = self._renewed()
        if keys is not None:
            self.keys = keys
        return keys is not None

    def refresh(self) -> bool:
        """Read the folder again if it has changed; returns whether the accepted keys have changed."""
        if self._folder is None or (self._seen is None and not self._folder.exists()):
            return False
        before = self.allowed
        try:
            state = self._state(self._folder)
            if state == self._seen:
                return False
            self._seen, self.allowed = state, read_allowed(self._folder) | self._own
        except (OSError, ConfigError) as error:
            # Safer to accept no selector than a revoked one.
            self._seen, self.allowed = (0, False), dict(self._own)
            if before != self.allowed:
                log.warning("no selector is let in any more: %s", error)
        return before != self.allowed

    @staticmethod
    def _state(folder: Path) -> tuple[int, bool]:
        changed_ns = folder.stat().st_mtime_ns
        return changed_ns, time.time_ns() - changed_ns > _COARSE_NS


def read_allowed(folder: Path) -> dict[str, str]:
    """The names of the accepted selectors, by public key."""
    status = folder.stat()
    if status.st_uid not in (0, os.geteuid()) or stat.S_IMODE(status.st_mode) & 0o022:
        raise ConfigError(
            _KEY, str(folder), "others may write to it, and so let themselves in", f"Run: chmod 700 {folder}"
        )
    found: dict[str, str] = {}
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        with path.open("rb") as file:
            text = file.read(_MAX_FILE_BYTES).decode("ascii", "replace").strip()
        if NAME.fullmatch(path.stem) and Z85.fullmatch(text):
            found[text] = path.stem
        elif not path.name.startswith("."):
            log.warning("%s is not a public key and lets nobody in", path)
    return found
