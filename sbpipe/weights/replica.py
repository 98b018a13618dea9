"""The selector's side: where its weights come from, and applying them whole, between leases. Knows no socket
and no policy.
"""

import sys
import threading
import time
from collections.abc import Callable
from typing import Protocol

import torch
from torch import nn

from sbpipe.errors import PeerLost
from sbpipe.records import Manifest
from sbpipe.weights.manifest import copy, fast_part, tensors_in, tensors_of
from sbpipe.weights.slots import Slots


class Replica:
    """A model that is overwritten with snapshots, parameters and buffers, and knows its version (-1 = none
    yet).

    The fast parts may be newer than the rest: `fast_version` is theirs, and a snapshot of the whole brings
    its own.
    """

    def __init__(
        self, model: nn.Module, manifest: Manifest, on_load: Callable[[], None] = lambda: None
    ) -> None:
        """`on_load` is told of every overwriting."""
        self.manifest = manifest
        self._on_load = on_load
        self.version = -1
        self.fast_version = -1
        self._fast = fast_part(manifest)
        self._tensors = tensors_of(model, manifest)
        self._loads: list[tuple[str, float, float]] = []

    def load(self, flat: torch.Tensor) -> None:
        """Overwrite everything; the caller calls `became` once it knows that the bytes were whole."""
        self.version = self.fast_version = -1
        begin = time.perf_counter()
        copy(self._tensors, tensors_in(flat, self.manifest))
        self._on_load()
        self._loads.append(("apply", begin, time.perf_counter() - begin))

    def load_fast(self, flat: torch.Tensor) -> None:
        """Overwrite the fast parts; the caller sets `fast_version` once it knows that the bytes were
        whole.
        """
        assert self._fast is not None, "only a model that has fast parts is sent them"
        self.fast_version = -1
        begin = time.perf_counter()
        copy(self._tensors[: len(self._fast.tensors)], tensors_in(flat, self._fast))
        self._on_load()
        self._loads.append(("apply_fast", begin, time.perf_counter() - begin))

    def became(self, version: int) -> None:
        """Everything is of this version now."""
        self.version = self.fast_version = version

    def take_loads(self) -> list[tuple[str, float, float]]:
        """The loads since the last call: stage, when it began, how long it took."""
        loads, self._loads = self._loads, []
        return loads


class WeightsSource(Protocol):
    """Where snapshots come from."""

    def refresh(
        self, replica: Replica, version: int, *, exact: bool, deadline_s: float, fast_version: int = -1
    ) -> bool:
        """Bring the replica to `version` exactly, or to the newest that is not older; whether it changed.

        The same for its fast parts with `fast_version`, unless that is -1. Where the whole is as new, its own
        fast parts count.
        """
        ...


class SlotSource:
    """Snapshots read straight from slots in shared (or, in one process, private) memory."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots

    def refresh(
        self, replica: Replica, version: int, *, exact: bool, deadline_s: float, fast_version: int = -1
    ) -> bool:
        """Copy the slot out; read again if the trainer wrote into it meanwhile."""
        give_up = time.monotonic() + deadline_s
        newest_fast = max(version, fast_version) if exact else sys.maxsize
        has_changed = self._refresh_whole(replica, version, exact, newest_fast, give_up)
        fast_has_changed = fast_version >= 0 and self._refresh_fast(replica, fast_version, exact, give_up)
        return has_changed or fast_has_changed

    def _refresh_whole(
        self, replica: Replica, version: int, exact: bool, newest_fast: int, give_up: float
    ) -> bool:
        while True:
            index = self._slots.find(version, exact=exact)
            if index is not None:
                if self._slots.version(index) == replica.version >= 0 and replica.fast_version <= newest_fast:
                    return False
                whole = self._slots.read(index, replica.load)
                if whole is not None and (whole >= version if not exact else whole == version):
                    replica.became(whole)
                    return True
            _wait(give_up, f"weights version {version} did not appear in shared memory in time")

    def _refresh_fast(self, replica: Replica, version: int, exact: bool, give_up: float) -> bool:
        fast = self._slots.fast
        assert fast is not None, "a lease that names fast parts comes from a trainer that publishes them"
        while True:
            index = fast.find(version, exact=True) if exact else fast.newest
            offered = -1 if index is None else fast.version(index)
            if replica.fast_version >= version and (exact or offered <= replica.fast_version):
                return False
            if index is not None and offered >= version:
                whole = fast.read(index, replica.load_fast)
                if whole is not None and (whole >= version if not exact else whole == version):
                    replica.fast_version = whole
                    return True
            _wait(give_up, f"fast parts of version {version} did not appear in shared memory in time")


def _wait(give_up: float, complaint: str) -> None:
    if time.monotonic() > give_up:
        raise PeerLost(complaint)
    time.sleep(0.0005)


class PulledSource:
    """Snapshots that arrived over the wire; `offer` is called by the link's thread, `refresh` by the scoring
    loop.
    """

    def __init__(self) -> None:
        self._arrived = threading.Condition()
        self._version = self._fast_version = -1
        self._flat: torch.Tensor | None = None
        self._fast_flat: torch.Tensor | None = None

    def offer(self, version: int, flat: torch.Tensor, *, is_fast: bool = False) -> None:
        """A whole, verified snapshot has arrived, of everything or of the fast parts; newest wins."""
        with self._arrived:
            if is_fast:
                self._fast_version, self._fast_flat = version, flat
            else:
                self._version, self._flat = version, flat
            self._arrived.notify_all()

    def refresh(
        self, replica: Replica, version: int, *, exact: bool, deadline_s: float, fast_version: int = -1
    ) -> bool:
        """Wait until fitting snapshots are there, then load them."""

        def fits() -> bool:
            if not exact:
                return (
                    self._version >= max(version, 0)
                    and max(self._version, self._fast_version) >= fast_version
                )
            return self._version == version and (
                fast_version <= version or self._fast_version == fast_version
            )

        with self._arrived:
            if not self._arrived.wait_for(fits, deadline_s):
                apart = f" with fast parts of version {fast_version}" if fast_version > version else ""
                raise PeerLost(f"weights version {version}{apart} did not arrive within {deadline_s:.0f} s")
            newest_fast = max(version, fast_version) if exact else sys.maxsize
            has_changed = False
            if self._flat is not None and (
                self._version != replica.version or replica.fast_version > newest_fast
            ):
                replica.load(self._flat)
                replica.became(self._version)
                has_changed = True
            is_newer = fast_version >= 0 and replica.fast_version < self._fast_version <= newest_fast
            if self._fast_flat is not None and is_newer:
                replica.load_fast(self._fast_flat)
                replica.fast_version = self._fast_version
                has_changed = True
            return has_changed
