"""Memory slots for snapshots: one writer, many readers, no lock between processes.

    header   magic, number of slots, bytes per slot, index of the newest slot | per slot: sequence, version
    slots    slot 0 | slot 1 | slot 2 ...

The writer takes a slot that is neither the newest nor held, makes its sequence odd, fills it, makes the
sequence even, and only then names it the newest. A reader copies a slot and checks its sequence again: if
that has changed, the copy is torn, and the reader repeats it. So a reader never delays the writer, and a
snapshot is seen whole or not at all. Both roles of a host map the same slots in a file under /dev/shm. The
writer holds a lock on that file; a process that finds it unlocked knows that its owner is gone, and removes
it.
"""

import contextlib
import fcntl
import mmap
import os
import threading
from collections.abc import Callable, Collection
from pathlib import Path

import numpy as np
import torch

from sbpipe.weights.leftovers import PREFIX, SHARED_MEMORY, open_own

_MAGIC = 0x5B_91_9E_01
_PAGE = 4096
_NEWEST = 3
_FIRST = 8
_FAST = "-fast"


class Slots:
    """The mapped memory: header and slots. `Slots.create` is the writer's, `Slots.attach` a reader's."""

    def __init__(
        self, memory: mmap.mmap, num_slots: int, slot_bytes: int, path: Path | None, lock_fd: int | None
    ) -> None:
        self.num_slots = num_slots
        self.slot_bytes = slot_bytes
        self.path = path
        self.fast: Slots | None = None
        """The small slots of the fast parts, where these are published apart."""
        self._lock_fd = lock_fd
        self._header = np.frombuffer(memory, np.int64, _PAGE // 8)
        flat = torch.frombuffer(memory, dtype=torch.uint8)
        stride = _round_up(slot_bytes)
        self._slots = [flat[_PAGE + k * stride :][:slot_bytes] for k in range(num_slots)]
        self._fence = threading.Lock()
        self.is_direct = False
        """Whether the slots lie on a device, and not behind their header."""

    @classmethod
    def create(cls, slot_bytes: int, *, num_slots: int = 3, name: str = "", fast_bytes: int = 0) -> "Slots":
        """Make slots, in shared memory under `name`, or private without a name. OSError if memory is short.

        With `fast_bytes` there are as many small slots beside them, for the fast parts.
        """
        size = _PAGE + num_slots * _round_up(slot_bytes)
        path = SHARED_MEMORY / f"{PREFIX}{name}" if name else None
        memory, lock_fd = (mmap.mmap(-1, size), None) if path is None else _map_new(path, size)
        slots = cls(memory, num_slots, slot_bytes, path, lock_fd)
        slots._header[_FIRST : _FIRST + 2 * num_slots].reshape(-1, 2)[:, 1] = -1
        slots._header[:_NEWEST] = [_MAGIC, num_slots, slot_bytes]
        for slot in slots._slots:
            # Touched now, so that the first publishes do not pay for page faults.
            slot.zero_()
        try:
            if fast_bytes:
                slots.fast = cls.create(
                    fast_bytes, num_slots=num_slots, name=f"{name}{_FAST}" if name else ""
                )
        except OSError:
            slots.close()
            raise
        return slots

    @classmethod
    def attach(cls, name: str) -> "Slots":
        """Map slots that another process made, and those of the fast part beside them, if there are any.

        Raises OSError if they are not there, are not slots, or are not this user's.
        """
        path = SHARED_MEMORY / name
        # The name came over the wire: it must not lead out of the folder.
        if not name.startswith(PREFIX) or path.parent != SHARED_MEMORY:
            raise OSError(f"{name} is not a name of sbpipe's slots")
        fd = open_own(path, os.O_RDWR)
        try:
            memory = mmap.mmap(fd, 0)
        finally:
            os.close(fd)
        header = np.frombuffer(memory, np.int64, _FIRST)
        magic, num_slots, slot_bytes = (int(word) for word in header[:_NEWEST])
        if magic != _MAGIC or len(memory) != _PAGE + num_slots * _round_up(slot_bytes):
            raise OSError(f"{path} does not hold sbpipe's slots")
        slots = cls(memory, num_slots, slot_bytes, None, None)
        beside = f"{name}{_FAST}"
        slots.fast = cls.attach(beside) if (SHARED_MEMORY / beside).exists() else None
        return slots

    def lie_in(self, memory: list[torch.Tensor]) -> None:
        """Use this memory for the slots from now on; the header stays."""
        assert len(memory) == self.num_slots
        self._slots = memory
        self.slot_bytes = memory[0].numel()
        self.is_direct = True

    def slot(self, index: int) -> torch.Tensor:
        """The flat bytes of one slot."""
        return self._slots[index]

    def version(self, index: int) -> int:
        """The version a slot holds; -1 before the first."""
        return int(self._header[_FIRST + 2 * index + 1])

    def sequence(self, index: int) -> int:
        """The slot's sequence: odd while it is being written."""
        self._barrier()
        found = int(self._header[_FIRST + 2 * index])
        self._barrier()
        return found

    @property
    def newest(self) -> int:
        """Index of the slot written last."""
        return int(self._header[_NEWEST])

    def begin(self, held: Collection[int] = ()) -> int | None:
        """Take the oldest slot that is neither the newest nor held, and mark it as being written.

        It has no version until it is committed. None if there is no such slot.
        """
        newest = self.newest if self.version(self.newest) >= 0 else -1
        free = [k for k in range(self.num_slots) if k != newest and k not in held]
        if not free:
            return None
        # A slot that was never written has version -1 and comes first.
        index = min(free, key=self.version)
        self._header[_FIRST + 2 * index] += 1
        self._header[_FIRST + 2 * index + 1] = -1
        self._barrier()
        return index

    def commit(self, index: int, version: int) -> None:
        """Mark a slot as whole, and the newest."""
        self._barrier()
        self._header[_FIRST + 2 * index + 1] = version
        self._header[_FIRST + 2 * index] += 1
        # Named last: a reader that follows `newest` finds it whole.
        self._barrier()
        self._header[_NEWEST] = index

    def _barrier(self) -> None:
        """A full memory barrier, on ARM too: releasing a lock and acquiring it again is one."""
        # Python has no fence. The lock is private to this process: it orders memory and excludes no other
        # process.
        for _ in range(2):
            with self._fence:
                pass

    def find(self, version: int, *, exact: bool) -> int | None:
        """The slot that holds exactly this version, or the newest if that is not older."""
        if not exact:
            return self.newest if self.version(self.newest) >= version else None
        return next((k for k in range(self.num_slots) if self.version(k) == version), None)

    def read(self, index: int, copy_out: Callable[[torch.Tensor], None]) -> int | None:
        """Copy a slot out; returns its version if the copy is whole, None if the writer interfered.

        `copy_out` must return only after the bytes were read: a copy that is only queued may still be torn.
        """
        before = self.sequence(index)
        version = self.version(index)
        if before % 2:
            return None
        copy_out(self._slots[index])
        return version if self.sequence(index) == before else None

    def close(self) -> None:
        """Close the writer's side, and leave nothing in shared memory."""
        if self.fast is not None:
            self.fast.close()
        # Only the name is removed: tensors still view the mapping, and the kernel frees it with the last one.
        if self.path is not None:
            with contextlib.suppress(FileNotFoundError):
                self.path.unlink()
            self.path = None
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None


def _map_new(path: Path, size: int) -> tuple[mmap.mmap, int]:
    """A new file in shared memory, its pages reserved and its lock held."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Reserved now, or ENOSPC: in a full /dev/shm the first write would kill the process (SIGBUS).
        os.posix_fallocate(fd, 0, size)
        return mmap.mmap(fd, size), fd
    except OSError:
        os.close(fd)
        path.unlink()
        raise


def _round_up(num_bytes: int) -> int:
    return -(-num_bytes // _PAGE) * _PAGE
