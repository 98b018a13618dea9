"""The selector's side: where its weights come from, and applying them whole, between leases. Knows no socket and no policy."""

import threading
import time
from typing import Protocol

import torch
from torch import nn

from sbpipe.errors import PeerLost
from sbpipe.records import Manifest
from sbpipe.weights.layout import copy, tensors_in, tensors_of
from sbpipe.weights.slots import Slots


class Replica:
    """A model that is overwritten with snapshots, parameters and buffers, and knows its version (-1 = none yet)."""

    def __init__(self, model: nn.Module, manifest: Manifest) -> None:
        self.manifest = manifest
        self.version = -1
        self.loaded = (0.0, 0.0)
        """When the last load began, and how long it took."""
        self._tensors = tensors_of(model, manifest)

    def load(self, flat: torch.Tensor) -> None:
        """Overwrite everything; the caller sets `version` once it knows that the bytes were whole."""
        begin = time.perf_counter()
        copy(self._tensors, tensors_in(flat, self.manifest))
        self.loaded = (begin, time.perf_counter() - begin)


class WeightsSource(Protocol):
    """Where snapshots come from."""

    def refresh(self, replica: Replica, version: int, *, exact: bool, deadline_s: float) -> bool:
        """Bring the replica to `version` exactly, or to the newest that is not older; whether it changed."""
        ...


class SlotSource:
    """Snapshots read straight from slots in shared (or, in one process, private) memory."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots

    def refresh(self, replica: Replica, version: int, *, exact: bool, deadline_s: float) -> bool:
        """Copy the slot out; read again if the trainer wrote into it meanwhile."""
        give_up = time.monotonic() + deadline_s
        while True:
            index = self._slots.find(version, exact=exact)
            if index is not None:
                if self._slots.version(index) == replica.version:
                    return False
                replica.version = -1
                whole = self._slots.read(index, replica.load)
                if whole is not None and (whole >= version if not exact else whole == version):
                    replica.version = whole
                    return True
            if time.monotonic() > give_up:
                raise PeerLost(f"weights version {version} did not appear in shared memory within {deadline_s:.0f} s")
            time.sleep(0.0005)


class PulledSource:
    """Snapshots that arrived over the wire; `offer` is called by the link's thread, `refresh` by the scoring loop."""

    def __init__(self) -> None:
        self._arrived = threading.Condition()
        self._version = -1
        self._flat: torch.Tensor | None = None

    def offer(self, version: int, flat: torch.Tensor) -> None:
        """A whole, verified snapshot has arrived; newest wins."""
        with self._arrived:
            self._version, self._flat = version, flat
            self._arrived.notify_all()

    def refresh(self, replica: Replica, version: int, *, exact: bool, deadline_s: float) -> bool:
        """Wait until a fitting snapshot is there, then load it."""

        def fits() -> bool:
            return self._version == version if exact else self._version >= max(version, 0)

        with self._arrived:
            if not self._arrived.wait_for(fits, deadline_s):
                raise PeerLost(f"weights version {version} did not arrive within {deadline_s:.0f} s")
            if self._version == replica.version or self._flat is None:
                return False
            replica.version = -1
            replica.load(self._flat)
            replica.version = self._version
            return True
