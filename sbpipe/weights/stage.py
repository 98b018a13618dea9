"""The way of a snapshot from an accelerator to a slot, beside the loop. Knows no version and no part."""

import logging
import queue
import threading
from collections.abc import Callable

import torch

from sbpipe.records import Manifest
from sbpipe.weights.manifest import copy, tensors_in

log = logging.getLogger("sbpipe.weights")

DEADLINE_S = 60.0
"""How long a publish that must be waits for a snapshot to leave the device."""


class Stage:
    """The way from an accelerator to a slot: device copy, side stream, pinned memory, thread.

    The thread is there as long as the stage: one that is started when memory is short may never begin. What
    fails in it is raised where the loop publishes next.
    """

    def __init__(self, manifest: Manifest, device: torch.device) -> None:
        self._flat = FlatCopy(manifest, device)
        # The slots are not pinned, and a copy from a device into such memory would block the loop.
        self._pinned = torch.empty(manifest.num_bytes, dtype=torch.uint8, pin_memory=True)
        self._device = device
        self._stream = torch.Stream(device)
        self._failure: BaseException | None = None
        self._is_idle = threading.Event()
        self._is_idle.set()
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="publish", daemon=True)
        self._thread.start()

    def wait(self, timeout_s: float) -> bool:
        """Whether the last snapshot has arrived; raises what kept it from arriving."""
        is_idle = self._is_idle.wait(timeout_s)
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        return is_idle

    def send(self, live: list[torch.Tensor], slot: torch.Tensor, arrived: Callable[[], None]) -> None:
        """Start a snapshot on its way; returns when the device copy is queued."""
        # On the training stream: the next optimizer step is queued behind it and cannot change it.
        flat = self._flat.taken(live)
        ready = torch.accelerator.current_stream(self._device).record_event()
        self._stream.wait_event(ready)
        with self._stream:
            self._pinned.copy_(flat, non_blocking=True)
            done = self._stream.record_event()

        def finish() -> None:
            done.synchronize()
            slot.copy_(self._pinned)
            arrived()

        self._is_idle.clear()
        self._work.put(finish)

    def close(self) -> None:
        """Let the last snapshot arrive and end the thread."""
        self._work.put(None)
        self._thread.join(DEADLINE_S)
        if self._failure is not None:
            log.warning("the last snapshot of the weights did not arrive: %s", self._failure)

    def _run(self) -> None:
        while (finish := self._work.get()) is not None:
            try:
                finish()
            except BaseException as error:  # noqa: BLE001 - the top of a thread: the loop raises it again
                self._failure = error
            finally:
                self._is_idle.set()


class FlatCopy:
    """The weights in one piece of memory on their own device."""

    def __init__(self, manifest: Manifest, device: torch.device) -> None:
        self._flat = torch.empty(manifest.num_bytes, dtype=torch.uint8, device=device)
        self._views = tensors_in(self._flat, manifest)

    def taken(self, live: list[torch.Tensor]) -> torch.Tensor:
        """The bytes of the weights as they are now; they stay until the next call."""
        copy(self._views, live)
        return self._flat
