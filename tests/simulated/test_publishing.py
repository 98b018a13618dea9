"""Weights leave a device whole, hundreds of times, while the loop goes on changing them."""

import threading

import torch
from support.runs import HANG_S, wait_for
from torch import nn

import simulated
from sbpipe.models import parts_of
from sbpipe.records import Part
from sbpipe.runs.spans import Spans
from sbpipe.weights.manifest import build_manifest, digest, tensors_in
from sbpipe.weights.publisher import PartPublisher, Publisher
from sbpipe.weights.replica import Replica, SlotSource
from sbpipe.weights.slots import Slots
from simulated.roles import waits_of_steps

PUBLISHES = 300


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(40, 40), nn.BatchNorm1d(40), nn.Linear(40, 10))


def fill(model: nn.Module, value: int) -> None:
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.fill_(value)


def test_no_reader_ever_sees_a_torn_snapshot() -> None:
    simulated.set_copies(latency_s=1e-4)
    model = net().to("sim:0")
    manifest = build_manifest(model, parts_of(model))
    slots, arrived = Slots.create(manifest.num_bytes), list[int]()

    def offered(part: Part, version: int, is_late: bool) -> None:
        arrived.append(version)

    publisher = PartPublisher(model, manifest, slots, Spans(), offered)
    seen, is_over = set[int](), threading.Event()
    torn: list[tuple[int, list[float]]] = []

    def read() -> None:
        flat = torch.empty(manifest.num_bytes, dtype=torch.uint8)
        while not is_over.is_set():
            version = slots.read(slots.newest, flat.copy_)
            if version is None or version < 0:
                continue
            values = {float(value) for tensor in tensors_in(flat, manifest) for value in tensor.unique()}
            seen.add(version)
            if values != {float(version)}:
                torn.append((version, sorted(values)))

    reader = threading.Thread(target=read)
    reader.start()
    for version in range(PUBLISHES):
        fill(model, version)
        publisher.publish(version, must=version % 3 == 0)
    publisher.close()
    is_over.set()
    reader.join(HANG_S)
    assert torn == []
    assert len(seen) > 1
    assert len(arrived) >= PUBLISHES // 3
    assert simulated.races() == []


def test_a_snapshot_goes_from_one_device_to_the_other_bit_for_bit() -> None:
    model, other = net().to("sim:0"), net().to("sim:1")
    manifest = build_manifest(model, parts_of(model))
    slots = Slots.create(manifest.num_bytes)
    publisher = PartPublisher(model, manifest, slots, Spans(), lambda *told: None)
    replica = Replica(other, manifest)
    for version in range(5):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_()
        publisher.publish(version, must=True)
        SlotSource(slots).refresh(replica, version, exact=True, deadline_s=HANG_S)
        assert digest(other) == digest(model)
    publisher.close()
    assert simulated.races() == []


class Bounded:
    """A publisher of weights that are trained within a bound; a gate keeps snapshots on their way."""

    def __init__(self) -> None:
        self.model = net().to("sim:0")
        self.manifest = build_manifest(self.model, parts_of(self.model))
        self.slots = Slots.create(self.manifest.num_bytes)
        self.told, self.gate = list[int](), threading.Event()
        self.publisher = Publisher(
            self.model, self.manifest, self.slots, Spans(), [], self._offered, urgent=[Part.WHOLE]
        )

    def _offered(self, part: Part, version: int, is_late: bool) -> None:
        self.told.append(version)
        assert self.gate.wait(HANG_S)

    def step(self, number: int, interval: int) -> None:
        fill(self.model, number)
        self.publisher.publish_due(number, {Part.WHOLE: interval})

    def newest(self) -> set[float]:
        """The values in the newest slot."""
        flat = self.slots.slot(self.slots.newest)
        return {float(value) for tensor in tensors_in(flat, self.manifest) for value in tensor.unique()}


def test_an_urgent_publish_that_finds_its_way_taken_is_made_up_for_and_nobody_waits() -> None:
    bounded = Bounded()
    simulated.reset()
    with waits_of_steps() as steps:
        for number in range(1, 5):
            bounded.step(number, interval=2)
        bounded.publisher.catch_up()
    here = threading.current_thread().name
    assert [thread for thread, *_ in steps.for_threads if thread == here] == []
    bounded.gate.set()
    wait_for("version 2 in its slot", lambda: bounded.publisher[Part.WHOLE].is_free)
    bounded.step(5, interval=2)  # not due, but version 4 is missing
    bounded.step(7, interval=2)  # neither due nor missing
    bounded.publisher.close()
    assert bounded.told == [2, 5]
    assert bounded.newest() == {5.0}
    assert [wait for wait in simulated.waits() if wait.thread == here] == []


def test_what_is_missing_goes_out_between_two_steps_as_soon_as_its_way_is_free() -> None:
    bounded = Bounded()
    for number in range(1, 3):
        bounded.step(number, interval=1)
    bounded.gate.set()

    def has_caught_up() -> bool:
        bounded.publisher.catch_up()
        return bounded.told == [1, 2]

    wait_for("version 2", has_caught_up)
    bounded.publisher.close()
    assert bounded.newest() == {2.0}


def test_a_publish_waits_for_nothing_on_the_loop() -> None:
    model = net().to("sim:0")
    manifest = build_manifest(model, parts_of(model))
    slots = Slots.create(manifest.num_bytes)
    publisher = PartPublisher(model, manifest, slots, Spans(), lambda *told: None)
    simulated.reset()
    for version in range(20):
        publisher.publish(version)
    publisher.close()
    assert [wait for wait in simulated.waits() if wait.thread == threading.current_thread().name] == []
