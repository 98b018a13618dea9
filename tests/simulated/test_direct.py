"""Weights go from one device to the other without the host; the handles here name memory of this process."""

import threading
from collections.abc import Iterator

import pytest
import torch
from support.runs import HANG_S
from torch import nn

import simulated
from sbpipe.models import parts_of
from sbpipe.records import Manifest
from sbpipe.runs.spans import Spans
from sbpipe.weights import direct
from sbpipe.weights.direct import Handle
from sbpipe.weights.manifest import build_manifest, digest
from sbpipe.weights.publisher import PartPublisher
from sbpipe.weights.replica import Replica, SlotSource
from sbpipe.weights.slots import Slots

NAME = "test-direct-sim"


class OneProcess:
    """Memory that is found by its number."""

    def __init__(self) -> None:
        self._made: list[torch.Tensor] = []

    def new(self, num_bytes: int, device: torch.device) -> tuple[torch.Tensor, Handle]:
        self._made.append(torch.zeros(num_bytes, dtype=torch.uint8, device=device))
        return self._made[-1], Handle("sim", f"{len(self._made) - 1:04x}", num_bytes)

    def open(self, handle: Handle, device: torch.device) -> torch.Tensor:
        return self._made[int(handle.memory, 16)]


class Pair:
    """A trainer on the first device, a selector on the second."""

    def __init__(self) -> None:
        self.model, self.other = net().to("sim:0"), net().to("sim:1")
        self.manifest: Manifest = build_manifest(self.model, parts_of(self.model))
        sharing = OneProcess()
        self.slots = direct.create(self.manifest.num_bytes, torch.device("sim:0"), name=NAME, sharing=sharing)
        self.seen: Slots = direct.attach(f"sbpipe-{NAME}", torch.device("sim:1"), sharing=sharing)
        self.publisher = PartPublisher(self.model, self.manifest, self.slots, Spans(), lambda *told: None)
        self.replica = Replica(self.other, self.manifest)
        # Another process has streams of its own on the trainer's device: torch orders nothing between them.
        self.elsewhere = torch.Stream("sim:0")

    def refresh(self, version: int, *, exact: bool = True) -> None:
        with self.elsewhere:
            SlotSource(self.seen).refresh(self.replica, version, exact=exact, deadline_s=HANG_S)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(40, 40), nn.BatchNorm1d(40), nn.Linear(40, 10))


def fill(model: nn.Module, value: int) -> None:
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.fill_(value)


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.publisher.close()
    made.slots.close()


def test_snapshots_arrive_bit_for_bit_while_the_loop_changes_the_weights(pair: Pair) -> None:
    simulated.set_slowness(0, 12.0)
    for version in range(8):
        with torch.no_grad():
            for parameter in pair.model.parameters():
                parameter.normal_()
        expected = digest(pair.model)
        assert pair.publisher.publish(version, must=version == 0)
        # Queued behind the snapshot: must not be in it.
        fill(pair.model, -1)
        pair.refresh(version)
        assert digest(pair.other) == expected
        assert pair.publisher._has_arrived(must=True)
    assert simulated.races() == []


def test_a_publish_waits_for_nothing_on_the_loop(pair: Pair) -> None:
    simulated.reset()
    for version in range(20):
        pair.publisher.publish(version)
    pair.publisher.close()
    assert [wait for wait in simulated.waits() if wait.thread == threading.current_thread().name] == []


def test_the_devices_are_ordered_by_marks_alone(pair: Pair) -> None:
    """A mark before the copy was made, or looked at again before it was read, would race here."""
    for version in range(8):
        fill(pair.model, version)
        pair.publisher.publish(version, must=True)
        pair.refresh(version)
    assert simulated.races() == []


def test_a_write_that_comes_into_a_read_is_read_again(pair: Pair) -> None:
    fill(pair.model, 0)
    pair.publisher.publish(0, must=True)
    torn = pair.seen.newest
    load, loads = pair.replica.load, list[int]()

    def load_beside_a_writer(flat: torch.Tensor) -> None:
        if not loads:
            for version in range(1, 4):
                fill(pair.model, version)
                pair.publisher.publish(version, must=True)
        loads.append(1)
        load(flat)

    pair.replica.load = load_beside_a_writer  # type: ignore[method-assign, assignment]
    pair.refresh(0, exact=False)
    assert pair.seen.version(torn) == 3
    assert (len(loads), pair.replica.version) == (2, 3)
    assert digest(pair.other) == digest(pair.model)


def test_a_checkpoint_has_the_snapshot_on_the_host(pair: Pair) -> None:
    fill(pair.model, 5)
    pair.publisher.publish(5, must=True)
    kept = pair.publisher.newest()["flat"]
    assert isinstance(kept, torch.Tensor)
    assert kept.device.type == "cpu"
    fill(pair.model, 6)
    pair.publisher.publish(6, must=True)
    pair.publisher.publish_flat(7, kept)
    fill(pair.model, 5)
    pair.refresh(7)
    assert digest(pair.other) == digest(pair.model)
    assert pair.publisher.piece(pair.slots.newest, 7, 0, 64) == kept[:64].numpy().tobytes()
