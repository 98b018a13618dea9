"""Weights pulled once for all selectors of a host: one of them pulls, all read from shared memory.

The puller is the selector that holds the lock of a file under /dev/shm, named after the trainer's session;
the file contains the name of the slots that it fills. The kernel drops the lock when its process ends, in
whatever way. The next selector that checks takes the lock, makes slots of its own and writes their name into
the file. Until then the others score with the last complete version. It knows no socket: pulled snapshots
come in by `offer`.
"""

import contextlib
import fcntl
import logging
import os
import secrets
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import torch

from sbpipe.errors import PeerLost
from sbpipe.records import Part
from sbpipe.weights.leftovers import PREFIX, SHARED_MEMORY, open_own
from sbpipe.weights.replica import Replica, SlotSource
from sbpipe.weights.slots import Slots

log = logging.getLogger("sbpipe.selector")

_LEAD = "-lead"
_LOOK_S = 0.25
"""How long to wait for weights before checking whether another selector pulls by now."""
_MOST_NAME_BYTES = 255


class RelayedSource:
    """Snapshots of a trainer on another host. The link's thread calls `leads` and `offer`, the scoring loop
    `refresh`.
    """

    def __init__(self, session: str, sizes: Mapping[Part, int] | None = None) -> None:
        """`session` names the trainer's slots on its own host: no other trainer has the same.

        Raises OSError where there is no shared memory that this user can write to.
        """
        if not session.startswith(PREFIX) or Path(session).name != session:
            raise OSError(f"{session!r} is not a name of sbpipe's slots")
        self._path = SHARED_MEMORY / f"{session}{_LEAD}"
        self._sizes = dict(sizes or {})
        self._lock_fd: int | None = None
        self._own: Slots | None = None
        self._found: tuple[str, Slots] | None = None
        self._turn = threading.Lock()
        self._is_closed = False
        os.close(self._open())

    def expect(self, sizes: Mapping[Part, int]) -> None:
        """Set the size of a snapshot of each part."""
        self._sizes = dict(sizes)

    # --- pulling ----------------------------------------------------------------------------------

    def leads(self) -> bool:
        """Whether this process pulls for all; takes over if no other does."""
        with self._turn:
            if self._own is not None or self._is_closed:
                return not self._is_closed
            try:
                fd = self._open()
            except OSError:
                # The path is another user's file or a link, so it cannot be used: each selector pulls for
                # itself.
                if self._sizes:
                    self._own = self._make_slots("")
                return self._own is not None
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # It may have been removed as a leftover between opening and locking: then the lock is
                # worthless.
                is_there = self._path.exists() and os.stat(self._path).st_ino == os.fstat(fd).st_ino
                if not is_there or not self._sizes:
                    os.close(fd)
                    return False
            except BlockingIOError:
                os.close(fd)
                return False
            try:
                self._lead(fd)
            except OSError as error:
                self._path.unlink(missing_ok=True)
                os.close(fd)
                self._own = self._make_slots("")
                log.warning(
                    "%s has no room for the weights (%s): this selector pulls them for itself alone, into "
                    "memory of its own. A larger one holds three snapshots of the model for all selectors of "
                    "the host",
                    SHARED_MEMORY,
                    error.strerror,
                )
            return True

    def _open(self) -> int:
        return open_own(self._path, os.O_RDWR | os.O_CREAT)

    def _lead(self, fd: int) -> None:
        name = f"{self._path.name.removeprefix(PREFIX).removesuffix(_LEAD)}-{secrets.token_hex(4)}"
        slots = self._make_slots(name)
        try:
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{PREFIX}{name}".encode(), 0)
        except OSError:
            slots.close()
            raise
        self._lock_fd, self._own = fd, slots
        log.info("this selector pulls the weights for all selectors of this host")

    def _make_slots(self, name: str) -> Slots:
        return Slots.create(self._sizes[Part.WHOLE], name=name, fast_bytes=self._sizes.get(Part.FAST, 0))

    def offer(self, version: int, flat: torch.Tensor, part: Part = Part.WHOLE) -> None:
        """A complete snapshot of a part has arrived here; publish it to all selectors of this host."""
        slots = self._own if part is Part.WHOLE else self._own and self._own.fast
        if slots is None:
            return
        # Readers copy and check the sequence again, so no slot is ever held.
        index = slots.begin()
        assert index is not None
        slots.slot(index).copy_(flat)
        slots.commit(index, version)

    # --- reading ----------------------------------------------------------------------------------

    def refresh(
        self, replica: Replica, version: int, *, exact: bool, deadline_s: float, fast_version: int = -1
    ) -> bool:
        """Load the newest snapshot that was pulled on this host; waits for the first."""
        give_up = time.monotonic() + deadline_s
        while True:
            slots = self._slots()
            if slots is not None:
                with contextlib.suppress(PeerLost):
                    return SlotSource(slots).refresh(
                        replica, version, exact=exact, deadline_s=_LOOK_S, fast_version=fast_version
                    )
            if time.monotonic() > give_up:
                raise PeerLost(
                    f"weights version {version} did not arrive within {deadline_s:.0f} s: the selector of "
                    "this host that pulls them has none"
                )
            if slots is None:
                time.sleep(0.005)

    def _slots(self) -> Slots | None:
        """The slots that are being filled now; the last known ones where these cannot be found."""
        if self._own is not None:
            return self._own
        try:
            with open(open_own(self._path, os.O_RDONLY), "rb") as file:
                name = file.read(_MOST_NAME_BYTES).decode("ascii", "replace")
            if name and (self._found is None or self._found[0] != name):
                slots = Slots.attach(name)
                # New slots are empty at first: until then keep scoring with the old ones.
                if self._found is None or slots.version(slots.newest) >= 0:
                    self._found = name, slots
        except OSError:
            pass
        return self._found[1] if self._found else None

    def close(self) -> None:
        """Stop pulling, so that another selector can take over."""
        with self._turn:
            self._is_closed = True
            if self._own is not None:
                self._own.close()
                self._own = None
            if self._lock_fd is not None:
                self._path.unlink(missing_ok=True)
                os.close(self._lock_fd)
                self._lock_fd = None
