"""The trainer's side: a snapshot at a step boundary costs the loop one copy. Knows no socket, no selector.

`Publisher` is the public class: the whole weights and, where published apart, the fast part. Its owner says
how often each is due; a new version is reported through `offered`, perhaps from another thread.
"""

import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from sbpipe.errors import ConfigError, DeviceError
from sbpipe.machine.copies import overlaps
from sbpipe.records import Manifest, Part
from sbpipe.runs.spans import Spans
from sbpipe.weights.gather import Shards
from sbpipe.weights.manifest import LiveTensors, copy, fast_part, relaid, row_by_row, tensors_in
from sbpipe.weights.slots import Slots
from sbpipe.weights.stage import DEADLINE_S, FlatCopy, stage_of

Offered = Callable[[Part, int, bool], None]
"""Called with the part, the version, and whether the loop has gone on since the publish."""


class Publisher:
    """The whole weights and, where published apart, the fast part: to publish, serve and save."""

    def __init__(
        self,
        model: nn.Module,
        manifest: Manifest,
        slots: Slots,
        spans: Spans,
        must: Collection[Part],
        offered: Offered,
        *,
        urgent: Collection[Part] = (),
    ) -> None:
        """A publish of a part in `must` waits until it is done. It, and one of an `urgent` part, may take the
        slot of a puller. An urgent publish that has to be skipped is made up for as soon as possible.
        """
        self._must, self._urgent = must, urgent
        self._overdue: dict[Part, int] = {}
        """The skipped version of each urgent part."""
        self.announce: Callable[[Part], None] = lambda part: None
        """Called before a part is published outside of a step: other ranks may have to contribute shares."""
        layouts = {Part.WHOLE: (manifest, slots)}
        fast = fast_part(manifest)
        if slots.fast is not None and fast is not None:
            layouts[Part.FAST] = (fast, slots.fast)
        self._parts = {
            part: PartPublisher(model, layout, of_part, spans, offered, part)
            for part, (layout, of_part) in layouts.items()
        }

    def __iter__(self) -> Iterator[Part]:
        return iter(self._parts)

    def __contains__(self, part: Part) -> bool:
        return part in self._parts

    def get(self, part: Part) -> "PartPublisher | None":
        """The publisher of one part, None where it is not published apart."""
        return self._parts.get(part)

    def __getitem__(self, part: Part) -> "PartPublisher":
        return self._parts[part]

    def publish_all(self, version: int) -> None:
        """Offer the present weights of every part, at the beginning of a run or of a resumed one."""
        for part, publisher in self._parts.items():
            self.announce(part)
            publisher.publish(version, must=True)

    def publish_due(self, step: int, intervals: Mapping[Part, int]) -> None:
        """Offer the parts that are due after this step, or were skipped; one without an interval is never
        due.
        """
        for part, publisher in self._parts.items():
            is_due = part in intervals and step % intervals[part] == 0
            if is_due or part in self._overdue:
                self._publish(part, step)
            else:
                publisher.check()

    def catch_up(self) -> None:
        """Offer skipped versions, if possible by now. Called between two steps, with the last
        step's weights.
        """
        for part, version in list(self._overdue.items()):
            if self._parts[part].is_free:
                self._publish(part, version)

    def _publish(self, part: Part, version: int) -> None:
        is_urgent = part in self._urgent
        is_out = self._parts[part].publish(version, must=part in self._must, is_urgent=is_urgent)
        if is_out:
            self._overdue.pop(part, None)
        elif is_urgent:
            self._overdue[part] = version

    def release(self, peer: str) -> None:
        """Release the slots that a peer holds."""
        for publisher in self._parts.values():
            publisher.release(peer)

    def state(self, step: int) -> dict[str, Any]:
        """For the checkpoint: the published snapshots that are older than the model itself."""
        newest = {part.name: publisher.newest() for part, publisher in self._parts.items()}
        return {name: snapshot for name, snapshot in newest.items() if snapshot["version"] != step}

    def restore(self, state: dict[str, Any], step: int) -> None:
        """Offer again the snapshots of a checkpoint; for other parts, the model at `step`."""
        for part, publisher in self._parts.items():
            # A snapshot of another size is of a program version that stored tensors with two names twice.
            if part.name in state and len(state[part.name]["flat"]) == publisher.num_bytes:
                publisher.publish_flat(state[part.name]["version"], state[part.name]["flat"])
            else:
                self.announce(part)
                publisher.publish(step, must=True)

    def totals(self) -> dict[str, int]:
        """How often each part was published, and how often skipped though due."""
        whole, fast = self._parts[Part.WHOLE], self._parts.get(Part.FAST)
        return {
            "sync.published": whole.num_published,
            "sync.skipped": whole.num_skipped,
            "sync.fast_published": fast.num_published if fast else 0,
            "sync.fast_skipped": fast.num_skipped if fast else 0,
        }

    def close(self) -> None:
        """Wait for snapshots that are on their way."""
        for publisher in self._parts.values():
            publisher.close()


class PartPublisher:
    """Copies the live parameters and buffers into a free slot; never hands out live storage.

    On the CPU the copy into the slot is the whole cost. On an accelerator the loop pays for one copy on the
    device; a side stream copies it to pinned memory, and a thread from there into the slot. A publish is
    skipped while the last one is still on its way. If the slots lie on that device, the one copy is all, and
    the thread only waits for it.
    """

    def __init__(
        self,
        model: nn.Module,
        manifest: Manifest,
        slots: Slots,
        spans: Spans,
        offered: Offered,
        part: Part = Part.WHOLE,
    ) -> None:
        self._shards = Shards(model, manifest) if Shards.are_in(model) else None
        if self._shards is not None and slots.is_direct:
            reason = "each rank holds a share of the weights, and they are gathered on the host"
            raise ConfigError(
                "sync.direct", True, reason, "Set sync.direct = false, or do not shard the model"
            )
        self._live = LiveTensors(model, manifest)
        self._manifest = manifest
        self._slots = slots
        self._part = part
        self._span = "publish" if part is Part.WHOLE else "publish_fast"
        self._views = [tensors_in(slots.slot(k), manifest) for k in range(slots.num_slots)]
        self._spans = spans
        self._offered = offered
        # The slot that each peer pulls from. Under a lock: the loop publishes, the dispatcher's thread holds
        # slots.
        self._holds: dict[str, int] = {}
        self._lock = threading.Lock()
        device = next(iter(model.state_dict().values())).device
        overlaps_here = overlaps(device) and self._shards is None
        self._stage = stage_of(manifest, device, slots) if overlaps_here else None
        # Without streams copies block, and one is better than one for each tensor.
        is_plain = device.type == "cpu" or self._stage is not None or self._shards is not None
        self._flat = None if is_plain or slots.is_direct else FlatCopy(manifest, device)
        self.num_published = 0
        self.num_skipped = 0

    def publish(self, version: int, *, must: bool = False, is_urgent: bool = False) -> bool:
        """Offer the present weights as `version`; returns whether it was done.

        Skipped if the last snapshot is still on its way, or if pullers hold every slot. With `is_urgent` or
        `must`, the oldest puller loses its slot and begins again. With `must`, it also waits for the last
        snapshot and for its own.
        """
        held = () if must or is_urgent else self._holds.values()
        if self._shards is not None:
            return self._publish_shards(self._shards, version, held)
        with self._spans.span(self._span):
            # A stage to the host has one buffer: a snapshot still in it would be overwritten while being
            # copied.
            if not self._has_arrived(must=must):
                self.num_skipped += 1
                return False
            with self._lock:
                index = self._slots.begin(held)
            if index is None:
                self.num_skipped += 1
                return False
            self._send(index, version)
            if must:
                self._has_arrived(must=True)
            self.num_published += 1
            return True

    def _has_arrived(self, *, must: bool) -> bool:
        """Whether the last snapshot is in its slot; with `must`, waits for it."""
        if self._stage is None or self._stage.wait(DEADLINE_S if must else 0.0):
            return True
        if must:
            raise DeviceError(f"a snapshot of the weights did not leave the device within {DEADLINE_S:.0f} s")
        return False

    def _send(self, index: int, version: int) -> None:
        live = self._live.read()
        if self._stage is not None:
            self._stage.send(live, index, lambda: self._commit(index, version))
            return
        if self._flat is not None:
            self._slots.slot(index).copy_(self._flat.taken(live))
        else:
            copy(self._views[index], live)
        self._commit(index, version)

    @property
    def is_free(self) -> bool:
        """Whether a snapshot could be sent now: the last one has arrived."""
        return self._has_arrived(must=False)

    def check(self) -> None:
        """Raise the error of the last snapshot, if one occurred after the loop went on."""
        if self._stage is not None:
            self._stage.wait(0.0)

    def _publish_shards(self, shards: Shards, version: int, held: Collection[int]) -> bool:
        """The same for a sharded model. Gathered even without a free slot: the other ranks contribute their
        shares.
        """
        with self._spans.span(self._span):
            with self._lock:
                index = self._slots.begin(held)
            shards.copy_into(None if index is None else self._views[index])
            if index is None:
                self.num_skipped += 1
                return False
            self._commit(index, version)
            self.num_published += 1
            return True

    def _commit(self, index: int, version: int) -> None:
        self._slots.commit(index, version)
        self._offered(self._part, version, self._stage is not None)

    def publish_flat(self, version: int, flat: torch.Tensor) -> None:
        """Offer a snapshot kept in a checkpoint, row by row."""
        with self._lock:
            index = self._slots.begin()
        assert index is not None, "a publish that must be finds a slot"
        self._slots.slot(index).copy_(relaid(flat, row_by_row(self._manifest), self._manifest))
        self._commit(index, version)

    @property
    def newest_version(self) -> int:
        """The version published last."""
        return self._slots.version(self._slots.newest)

    @property
    def num_bytes(self) -> int:
        """The size of a snapshot."""
        return self._manifest.num_bytes

    def piece(self, index: int, version: int, offset: int, end: int) -> bytes | None:
        """A copy of some bytes of a slot; None if it does not hold that version to the end of the copy.

        An urgent publish takes a slot that is held, and may begin while it is being copied.
        """
        copied = self._slots.slot(index)[offset:end].cpu().numpy().tobytes()
        self._slots.sequence(index)  # a barrier: the version is read after the bytes
        return copied if self._slots.version(index) == version else None

    def newest(self) -> dict[str, int | torch.Tensor]:
        """The version published last and a copy of its flat bytes, for a checkpoint, row by row."""
        # A copy, because the loop goes on publishing while the checkpoint is written.
        flat = self._slots.slot(self._slots.newest).to("cpu", copy=True)
        return {
            "version": self.newest_version,
            "flat": relaid(flat, self._manifest, row_by_row(self._manifest)),
        }

    def hold(self, peer: str, version: int) -> int | None:
        """Keep a slot from being overwritten while a peer pulls it; one slot per peer."""
        with self._lock:
            index = self._slots.find(version, exact=True)
            if index is not None:
                self._holds[peer] = index
            return index

    def release(self, peer: str) -> None:
        """Release the slot that a peer holds."""
        with self._lock:
            self._holds.pop(peer, None)

    def close(self) -> None:
        """Wait for a snapshot that is on its way."""
        if self._stage is not None:
            self._stage.close()
