"""The way of a snapshot from an accelerator to a slot, beside the loop. Knows no version and no part."""

import logging
import queue
import threading
from collections.abc import Callable
from typing import Protocol

import torch

from sbpipe.machine.devices import make_current
from sbpipe.records import Manifest
from sbpipe.weights.manifest import copy, tensors_in
from sbpipe.weights.slots import Slots

log = logging.getLogger("sbpipe.weights")

DEADLINE_S = 60.0
"""How long a publish with `must` waits for a snapshot to leave the device."""


class Stage(Protocol):
    """The way of a snapshot into a slot, beside the loop."""

    def send(self, live: list[torch.Tensor], index: int, arrived: Callable[[], None]) -> None:
        """Start a snapshot on its way into this slot; returns when the device copy is queued."""
        ...

    def wait(self, timeout_s: float) -> bool:
        """Whether the last snapshot has arrived; raises the error that prevented it."""
        ...

    def close(self) -> None:
        """Wait for the last snapshot and end the thread."""
        ...


def stage_of(manifest: Manifest, device: torch.device, slots: Slots) -> Stage:
    """The stage for this device and these slots."""
    way = DeviceStage if slots.is_direct else HostStage
    return way(manifest, device, slots)


class _Thread:
    """The thread that finishes a snapshot when the device has done its part.

    It lives as long as the stage: a thread that is started when memory is short may never begin. An error in
    it is raised where the loop publishes next.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._failure: BaseException | None = None
        self._is_idle = threading.Event()
        self._is_idle.set()
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="publish", daemon=True)
        self._thread.start()

    def wait(self, timeout_s: float) -> bool:
        """Whether the last snapshot has arrived; raises the error that prevented it."""
        is_idle = self._is_idle.wait(timeout_s)
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        return is_idle

    def _then(self, finish: Callable[[], None]) -> None:
        self._is_idle.clear()
        self._work.put(finish)

    def close(self) -> None:
        """Wait for the last snapshot and end the thread."""
        self._work.put(None)
        self._thread.join(DEADLINE_S)
        if self._failure is not None:
            log.warning("the last snapshot of the weights did not arrive: %s", self._failure)

    def _run(self) -> None:
        while (finish := self._work.get()) is not None:
            try:
                # Waiting for an event creates a context on the current device, by default the first one.
                make_current(self._device)
                finish()
            except BaseException as error:  # noqa: BLE001 - the top of a thread: the loop raises it again
                self._failure = error
            finally:
                self._is_idle.set()


class HostStage(_Thread):
    """The way from an accelerator to a slot on the host: device copy, side stream, pinned memory, thread."""

    def __init__(self, manifest: Manifest, device: torch.device, slots: Slots) -> None:
        self._flat = FlatCopy(manifest, device)
        # The slots are not pinned, and a copy from a device into such memory would block the loop.
        self._pinned = torch.empty(manifest.num_bytes, dtype=torch.uint8, pin_memory=True)
        self._slots = slots
        self._stream = torch.Stream(device)
        super().__init__(device)

    def send(self, live: list[torch.Tensor], index: int, arrived: Callable[[], None]) -> None:
        """Start a snapshot on its way into this slot; returns when the device copy is queued."""
        # On the training stream: the next optimizer step is queued behind it and cannot change it.
        flat = self._flat.taken(live)
        ready = torch.accelerator.current_stream(self._device).record_event()
        self._stream.wait_event(ready)
        with self._stream:
            self._pinned.copy_(flat, non_blocking=True)
            done = self._stream.record_event()

        def finish() -> None:
            done.synchronize()
            self._slots.slot(index).copy_(self._pinned)
            arrived()

        self._then(finish)


class DeviceStage(_Thread):
    """The way to a slot on the same device: one copy there. Never run on hardware (see `direct.py`)."""

    def __init__(self, manifest: Manifest, device: torch.device, slots: Slots) -> None:
        self._views = [tensors_in(slots.slot(k), manifest) for k in range(slots.num_slots)]
        super().__init__(device)

    def send(self, live: list[torch.Tensor], index: int, arrived: Callable[[], None]) -> None:
        """Queue the copy into this slot; it has arrived when the device has made it."""
        # On the training stream: the next optimizer step is queued behind it and cannot change it.
        copy(self._views[index], live)
        done = torch.accelerator.current_stream(self._device).record_event()

        def finish() -> None:
            # A selector sees the header at once, so the copy must be complete, not only queued.
            done.synchronize()
            arrived()

        self._then(finish)


class FlatCopy:
    """The weights as flat bytes on their own device."""

    def __init__(self, manifest: Manifest, device: torch.device) -> None:
        self._flat = torch.empty(manifest.num_bytes, dtype=torch.uint8, device=device)
        self._views = tensors_in(self._flat, manifest)

    def taken(self, live: list[torch.Tensor]) -> torch.Tensor:
        """The bytes of the present weights; valid until the next call."""
        copy(self._views, live)
        return self._flat
