"""A child tells its supervisor what it does, and its last word, through memory, because disks may be full.

The child writes and the supervisor reads; neither waits for the other. It must not know what the words mean.
"""

import contextlib
import json
import os
import struct
from typing import Any

_VARIABLE = "SBPIPE_BULLETIN"
_NAME = "sbpipe-bulletin"
_HEAD = struct.Struct("<QQ48s")
"""The number of signs of life, the bytes of the last word (which follows this head), what the child does."""


class Bulletin:
    """A file in memory that a child inherits from its supervisor."""

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self._count = 0
        self._num_bytes = 0

    @classmethod
    def new(cls) -> "Bulletin":
        """A bulletin for a child that is about to be started."""
        bulletin = cls(os.memfd_create(_NAME))
        bulletin.doing("starting", is_sign=False)
        return bulletin

    @classmethod
    def inherited(cls) -> "Bulletin | None":
        """The bulletin from this process's supervisor, if there is one; own children do not inherit it."""
        given = os.environ.pop(_VARIABLE, "")
        with contextlib.suppress(OSError, ValueError):
            handle, owner = map(int, given.split(":"))
            # A process in between (torchrun) may have closed the handle: then the supervisor's own is opened.
            for holder in ("self", str(owner)):
                path = f"/proc/{holder}/fd/{handle}"
                with contextlib.suppress(OSError):
                    if os.readlink(path).startswith(f"/memfd:{_NAME}"):
                        own = handle if holder == "self" else os.open(path, os.O_RDWR)
                        os.set_inheritable(own, False)
                        return cls(own)
        return None

    @property
    def environment(self) -> dict[str, str]:
        """The environment by which a child finds it."""
        return {_VARIABLE: f"{self.handle}:{os.getpid()}"}

    def close(self) -> None:
        """Close this process's handle."""
        os.close(self.handle)

    # --- the child's side -------------------------------------------------------------------------

    def doing(self, what: str, *, is_sign: bool = True) -> None:
        """Say what this process does; each call is a sign of life."""
        self._count += is_sign
        os.pwrite(self.handle, _HEAD.pack(self._count, self._num_bytes, what.encode()[:48]), 0)

    def leave(self, word: dict[str, Any]) -> None:
        """Leave the last word."""
        content = json.dumps(word).encode()
        os.pwrite(self.handle, content, _HEAD.size)
        self._num_bytes = len(content)
        self.doing("ending")

    # --- the supervisor's side --------------------------------------------------------------------

    @property
    def news(self) -> tuple[int, str]:
        """The number of signs of life, and what the child does."""
        count, _, what = _HEAD.unpack(os.pread(self.handle, _HEAD.size, 0))
        return count, what.rstrip(b"\0").decode(errors="replace")

    @property
    def last_word(self) -> dict[str, Any]:
        """The child's last word; {} if it left none."""
        _, num_bytes, _ = _HEAD.unpack(os.pread(self.handle, _HEAD.size, 0))
        return dict(json.loads(os.pread(self.handle, num_bytes, _HEAD.size))) if num_bytes else {}
