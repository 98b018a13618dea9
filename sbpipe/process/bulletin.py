"""What a child tells its supervisor through memory, as disks may be full: what it does, and its last word.

The child writes, the supervisor reads; nobody waits for the other. It must not know what the words mean.
"""

import contextlib
import json
import os
import struct
from typing import Any

_VARIABLE = "SBPIPE_BULLETIN"
_NAME = "sbpipe-bulletin"
_HEAD = struct.Struct("<QQ48s")
"""How often the child said what it does, bytes of its last word (behind this head), what it does."""


class Bulletin:
    """A file in memory that a child inherits from its supervisor."""

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self._count = 0
        self._num_bytes = 0

    @classmethod
    def new(cls) -> "Bulletin":
        """For a child that is about to be started."""
        bulletin = cls(os.memfd_create(_NAME))
        bulletin.doing("starting", is_sign=False)
        return bulletin

    @classmethod
    def inherited(cls) -> "Bulletin | None":
        """What this process got from its supervisor, if it has one; its own children do not get it."""
        given = os.environ.pop(_VARIABLE, "")
        with contextlib.suppress(OSError, ValueError):
            handle, owner = map(int, given.split(":"))
            # What stands between a supervisor and this process may have let go of it.
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
        """How a child finds it."""
        return {_VARIABLE: f"{self.handle}:{os.getpid()}"}

    def close(self) -> None:
        """Let go of it."""
        os.close(self.handle)

    # --- the child's side -------------------------------------------------------------------------

    def doing(self, what: str, *, is_sign: bool = True) -> None:
        """Say what goes on; each call is a sign of life."""
        self._count += is_sign
        os.pwrite(self.handle, _HEAD.pack(self._count, self._num_bytes, what.encode()[:48]), 0)

    def leave(self, word: dict[str, Any]) -> None:
        """The last word."""
        content = json.dumps(word).encode()
        os.pwrite(self.handle, content, _HEAD.size)
        self._num_bytes = len(content)
        self.doing("ending")

    # --- the supervisor's side --------------------------------------------------------------------

    @property
    def news(self) -> tuple[int, str]:
        """How many signs of life there were, and what goes on."""
        count, _, what = _HEAD.unpack(os.pread(self.handle, _HEAD.size, 0))
        return count, what.rstrip(b"\0").decode(errors="replace")

    @property
    def last_word(self) -> dict[str, Any]:
        """What the child left; {} if it did not come to that."""
        _, num_bytes, _ = _HEAD.unpack(os.pread(self.handle, _HEAD.size, 0))
        return dict(json.loads(os.pread(self.handle, num_bytes, _HEAD.size))) if num_bytes else {}
