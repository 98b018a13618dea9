"""The selector's side: the sources of weights, and applying them whole, between leases.

Knows no socket and no policy.
"""

import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch
from torch import nn

from sbpipe.errors import PeerLost, PeerRejected
from sbpipe.machine.copies import overlaps
from sbpipe.records import Manifest, Part
from sbpipe.weights.manifest import apart_in, copy, layouts_of, tensors_in, tensors_of
from sbpipe.weights.slots import Slots

_STAGES = {Part.WHOLE: "apply", Part.FAST: "apply_fast"}


class Replica:
    """A model that is overwritten with snapshots, parameters and buffers, and knows its versions (-1 = none).

    The fast part may be newer than the rest; a snapshot of the whole includes a fast part.
    """

    def __init__(
        self, model: nn.Module, manifest: Manifest, on_load: Callable[[], None] = lambda: None
    ) -> None:
        """`on_load` is called after every overwrite."""
        self.manifest = manifest
        self._on_load = on_load
        self._layouts = layouts_of(manifest)
        self._tensors = tensors_of(model, manifest)
        self._apart = apart_in(model, manifest)
        self._versions = dict.fromkeys(Part, -1)
        self._loads: list[tuple[str, float, float]] = []
        device = self._tensors[0].device
        self._stage = None if device.type == "cpu" else _Stage(manifest, device)

    @property
    def version(self) -> int:
        """The version of the whole."""
        return self._versions[Part.WHOLE]

    @property
    def fast_version(self) -> int:
        """The version of the fast part."""
        return self._versions[Part.FAST]

    def load(self, flat: torch.Tensor, part: Part = Part.WHOLE) -> None:
        """Take the bytes of a part; the caller calls `became` once it knows that they were not torn.

        On the CPU they are copied straight into the model, elsewhere into a stage.
        """
        # No version until the copy is known to be whole: a torn copy must not pass for the old weights.
        self._is_of(-1, part)
        begin = time.perf_counter()
        if self._stage is None:
            self._overwrite(flat, part)
        else:
            self._stage.take(flat)
        self._loads.append((_STAGES[part], begin, time.perf_counter() - begin))

    def became(self, version: int, part: Part = Part.WHOLE) -> None:
        """Confirm that the bytes loaded last are whole, and of this version."""
        if self._stage is not None:
            begin = time.perf_counter()
            self._overwrite(self._stage.sent(self._layouts[part].num_bytes), part)
            stage, began, duration_s = self._loads.pop()
            self._loads.append((stage, began, duration_s + time.perf_counter() - begin))
        self._is_of(version, part)

    def _overwrite(self, flat: torch.Tensor, part: Part) -> None:
        layout = self._layouts[part]
        # The fast tensors are the first of the layout.
        count, views = len(layout.tensors), tensors_in(flat, layout)
        apart = [(tensor, views[place]) for place, tensor in self._apart if place < count]
        copy([*self._tensors[:count], *(into for into, _ in apart)], [*views, *(of for _, of in apart)])
        self._on_load()

    def _is_of(self, version: int, part: Part) -> None:
        self._versions[Part.FAST] = version
        if part is Part.WHOLE:
            self._versions[Part.WHOLE] = version

    def take_loads(self) -> list[tuple[str, float, float]]:
        """The loads since the last call: stage, when it began, how long it took."""
        loads, self._loads = self._loads, []
        return loads


class _Stage:
    """The way of a snapshot to an accelerator: private host memory, then one upload.

    If the device read from the slot itself, the trainer could overwrite it unnoticed. So the bytes are copied
    out of the slot before its sequence is checked again. From a slot on another device they are copied
    without the host, into the memory that the upload would fill.
    """

    def __init__(self, manifest: Manifest, device: torch.device) -> None:
        self._device = device
        self._has_streams = overlaps(device)
        self._host = torch.empty(manifest.num_bytes, dtype=torch.uint8, pin_memory=self._has_streams)
        self._flat = torch.empty(manifest.num_bytes, dtype=torch.uint8, device=device)
        self._sent: torch.Event | None = None
        self._is_there = False

    def take(self, flat: torch.Tensor) -> None:
        """Copy bytes in; returns when they have been read."""
        self._is_there = flat.device.type != "cpu"
        if self._is_there:
            self._take_direct(flat)
            return
        # The last upload has finished long before the scores computed from it are known: usually no wait.
        if self._sent is not None and not self._sent.query():
            self._sent.synchronize()
        self._host[: flat.numel()].copy_(flat)

    def _take_direct(self, flat: torch.Tensor) -> None:
        self._flat[: flat.numel()].copy_(flat, non_blocking=self._has_streams)
        if self._has_streams:
            # Wait: the slot's sequence is checked next, and that must not happen before the device has read.
            torch.accelerator.current_stream(self._device).record_event().synchronize()

    def sent(self, num_bytes: int) -> torch.Tensor:
        """The bytes on the device, for kernels queued from now on."""
        if self._is_there:
            return self._flat[:num_bytes]
        flat = self._flat[:num_bytes].copy_(self._host[:num_bytes], non_blocking=self._has_streams)
        if self._has_streams:
            self._sent = torch.accelerator.current_stream(self._device).record_event()
        return flat


class WeightsSource(Protocol):
    """A source of snapshots."""

    def refresh(
        self, replica: Replica, version: int, *, exact: bool, deadline_s: float, fast_version: int = -1
    ) -> bool:
        """Bring the replica to exactly `version`, or to the newest not older; returns whether it changed.

        The same for its fast part with `fast_version`, unless that is -1. If the whole is as new, its
        included fast part counts.
        """
        ...


class SlotSource:
    """Snapshots read straight from slots in shared (or, in one process, private) memory."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots

    def refresh(
        self, replica: Replica, version: int, *, exact: bool, deadline_s: float, fast_version: int = -1
    ) -> bool:
        """Copy the slot out; repeat if the trainer wrote into it meanwhile."""
        give_up = time.monotonic() + deadline_s
        # Under an exact lease a fast part that is too new is undone by loading the whole again.
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
                # The slot may have been written between `find` and `read`: the version read decides.
                found = self._slots.read(index, replica.load)
                if found is not None and (found >= version if not exact else found == version):
                    replica.became(found)
                    return True
            _wait(give_up, f"weights version {version} did not appear in shared memory in time")

    def _refresh_fast(self, replica: Replica, version: int, exact: bool, give_up: float) -> bool:
        fast = self._slots.fast
        if fast is None:
            raise PeerRejected(
                f"the trainer named a fast part of version {version}, which it does not publish apart"
            )
        while True:
            index = fast.find(version, exact=True) if exact else fast.newest
            offered = -1 if index is None else fast.version(index)
            if replica.fast_version >= version and (exact or offered <= replica.fast_version):
                return False
            if index is not None and offered >= version:
                found = fast.read(index, partial(replica.load, part=Part.FAST))
                if found is not None and (found >= version if not exact else found == version):
                    replica.became(found, Part.FAST)
                    return True
            _wait(give_up, f"the fast part of version {version} did not appear in shared memory in time")


def _wait(give_up: float, complaint: str) -> None:
    if time.monotonic() > give_up:
        raise PeerLost(complaint)
    # Polled: waking readers would need a lock between processes. The interval is far below a train step.
    time.sleep(0.0005)


class PulledSource:
    """Snapshots that arrived over the wire: the link's thread calls `offer`, the scoring loop `refresh`."""

    def __init__(self) -> None:
        self._arrived = threading.Condition()
        self._offers: dict[Part, tuple[int, torch.Tensor]] = {}

    def leads(self) -> bool:
        """True: it pulls for itself."""
        return True

    def offer(self, version: int, flat: torch.Tensor, part: Part = Part.WHOLE) -> None:
        """A complete, verified snapshot of a part has arrived; the last one offered is kept."""
        with self._arrived:
            self._offers[part] = (version, flat)
            self._arrived.notify_all()

    def refresh(
        self, replica: Replica, version: int, *, exact: bool, deadline_s: float, fast_version: int = -1
    ) -> bool:
        """Wait until fitting snapshots are there, then load them."""

        def fits() -> bool:
            whole, fast = self._version(Part.WHOLE), self._version(Part.FAST)
            if not exact:
                return whole >= max(version, 0) and max(whole, fast) >= fast_version
            return whole == version and (fast_version <= version or fast == fast_version)

        # Held while loading too: the link's thread must not replace the offer between check and copy.
        with self._arrived:
            if not self._arrived.wait_for(fits, deadline_s):
                apart = f" with a fast part of version {fast_version}" if fast_version > version else ""
                raise PeerLost(f"weights version {version}{apart} did not arrive within {deadline_s:.0f} s")
            newest_fast = max(version, fast_version) if exact else sys.maxsize
            is_whole_due = self._version(Part.WHOLE) != replica.version or replica.fast_version > newest_fast
            has_changed = is_whole_due and self._load(replica, Part.WHOLE)
            # Checked after the whole was loaded, which may have included an older fast part.
            is_fast_due = fast_version >= 0 and replica.fast_version < self._version(Part.FAST) <= newest_fast
            return (is_fast_due and self._load(replica, Part.FAST)) or has_changed

    def _version(self, part: Part) -> int:
        return self._offers[part][0] if part in self._offers else -1

    def _load(self, replica: Replica, part: Part) -> bool:
        version, flat = self._offers[part]
        replica.load(flat, part)
        replica.became(version, part)
        return True
