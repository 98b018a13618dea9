"""The trainer's side: a snapshot taken at a step boundary, costing the loop one copy. Knows no socket and no
selector.
"""

import threading
from collections.abc import Callable

import torch
from torch import nn

from sbpipe.records import Manifest
from sbpipe.runs.spans import Spans
from sbpipe.weights.manifest import LiveTensors, copy, tensors_in
from sbpipe.weights.slots import Slots


class Publisher:
    """Copies the live parameters and buffers into a free slot; never hands out live storage.

    On the CPU the copy into the slot is the whole cost. On an accelerator the loop pays for one copy on the
    device; a side stream brings it to pinned memory and a thread from there into the slot, and a publish that
    finds the last one still on its way is skipped.
    """

    def __init__(
        self,
        model: nn.Module,
        manifest: Manifest,
        slots: Slots,
        spans: Spans,
        on_commit: Callable[[int], None],
        *,
        stage: str = "publish",
    ) -> None:
        self._live = LiveTensors(model, manifest)
        self._manifest = manifest
        self._slots = slots
        self._stage_name = stage
        self._views = [tensors_in(slots.slot(k), manifest) for k in range(slots.num_slots)]
        self._spans = spans
        self._on_commit = on_commit
        self._holds: dict[str, int] = {}
        self._lock = threading.Lock()
        device = next(iter(model.state_dict().values())).device
        self._stage = _Stage(manifest, device) if device.type != "cpu" else None
        self.num_published = 0
        self.num_skipped = 0

    def publish(self, version: int, *, must: bool = False) -> bool:
        """Offer the weights as they are now as `version`; whether it was done.

        It is skipped when every slot is held by a puller; if it `must` be, the oldest puller loses its slot
        and begins again.
        """
        with self._spans.span(self._stage_name):
            if self._stage is not None and not self._stage.wait(0.0 if not must else None):
                self.num_skipped += 1
                return False
            index = self._begin_slot(must=must)
            if index is None:
                self.num_skipped += 1
                return False
            live = self._live.read()
            if self._stage is None:
                copy(self._views[index], live)
                self._commit(index, version)
            else:
                self._stage.send(live, self._slots.slot(index), lambda: self._commit(index, version))
                if must:
                    self._stage.wait(None)
            self.num_published += 1
            return True

    def _commit(self, index: int, version: int) -> None:
        self._slots.commit(index, version)
        self._on_commit(version)

    def publish_flat(self, version: int, flat: torch.Tensor) -> None:
        """Offer a snapshot kept in a checkpoint."""
        index = self._begin_slot(must=True)
        assert index is not None, "a publish that must be finds a slot"
        self._slots.slot(index).copy_(flat)
        self._commit(index, version)

    @property
    def commits_late(self) -> bool:
        """Whether a publish returns before its version is offered."""
        return self._stage is not None

    @property
    def newest_version(self) -> int:
        """The version published last."""
        return self._slots.version(self._slots.newest)

    @property
    def num_bytes(self) -> int:
        """The size of a snapshot."""
        return self._manifest.num_bytes

    def piece(self, index: int, offset: int, end: int) -> bytes:
        """A copy of some bytes of a slot."""
        return self._slots.slot(index)[offset:end].numpy().tobytes()

    def newest(self) -> dict[str, int | torch.Tensor]:
        """The version published last and a copy of its flat bytes, for a checkpoint."""
        return {"version": self.newest_version, "flat": self._slots.slot(self._slots.newest).clone()}

    def _begin_slot(self, *, must: bool) -> int | None:
        """Take the oldest slot that is neither the newest nor, unless it must be, held."""
        with self._lock:
            held = set() if must else {*self._holds.values()}
            if self._slots.version(self._slots.newest) >= 0:
                held.add(self._slots.newest)
            free = [k for k in range(self._slots.num_slots) if k not in held]
            if not free:
                return None
            index = min(free, key=self._slots.version)
            self._slots.begin(index)
            return index

    def hold(self, peer: str, version: int) -> int | None:
        """Keep a slot from being overwritten while a peer pulls it; one slot per peer."""
        with self._lock:
            index = self._slots.find(version, exact=True)
            if index is not None:
                self._holds[peer] = index
            return index

    def release(self, peer: str) -> None:
        """Let go of what a peer held."""
        with self._lock:
            self._holds.pop(peer, None)

    def close(self) -> None:
        """Let a snapshot that is on its way arrive."""
        if self._stage is not None:
            self._stage.wait(None)


class _Stage:
    """The way from an accelerator to a slot: device copy, side stream, pinned memory, thread."""

    def __init__(self, manifest: Manifest, device: torch.device) -> None:
        self._flat = torch.empty(manifest.num_bytes, dtype=torch.uint8, device=device)
        self._views = tensors_in(self._flat, manifest)
        self._pinned = torch.empty(manifest.num_bytes, dtype=torch.uint8, pin_memory=True)
        self._device = device
        self._stream = torch.Stream(device)
        self._thread: threading.Thread | None = None

    def wait(self, timeout_s: float | None) -> bool:
        """Whether the last snapshot has arrived."""
        if self._thread is not None:
            self._thread.join(timeout_s)
        return self._thread is None or not self._thread.is_alive()

    def send(self, live: list[torch.Tensor], slot: torch.Tensor, arrived: Callable[[], None]) -> None:
        """Start a snapshot on its way; returns when the device copy is queued."""
        copy(self._views, live)
        ready = torch.accelerator.current_stream(self._device).record_event()
        self._stream.wait_event(ready)
        with self._stream:
            self._pinned.copy_(self._flat, non_blocking=True)
            done = self._stream.record_event()

        def finish() -> None:
            done.synchronize()
            slot.copy_(self._pinned)
            arrived()

        self._thread = threading.Thread(target=finish, name="publish", daemon=True)
        self._thread.start()
