"""Weights leave a device whole, hundreds of times, while the loop goes on changing them."""

import threading
import time

import torch
from support.runs import HANG_S
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


def test_an_urgent_publish_that_finds_its_way_taken_is_made_up_for_and_nobody_waits() -> None:
    model, told = net().to("sim:0"), list[int]()
    has_arrived = threading.Event()

    def offered(part: Part, version: int, is_late: bool) -> None:
        told.append(version)
        has_arrived.set()

    manifest = build_manifest(model, parts_of(model))
    slots = Slots.create(manifest.num_bytes)
    publisher = Publisher(model, manifest, slots, Spans(), [], offered, urgent=[Part.WHOLE])
    simulated.set_copies(latency_s=0.5)
    simulated.reset()
    with waits_of_steps() as steps:
        for step in range(1, 5):
            fill(model, step)
            publisher.publish_due(step, {Part.WHOLE: 2})
        assert steps.for_threads == {}
    assert told == [], "version 2 is on its way, and 4 is missing"
    publisher.catch_up()
    assert has_arrived.wait(HANG_S)
    simulated.set_copies()
    fill(model, 5)
    publisher.publish_due(5, {Part.WHOLE: 2})  # not due, but 4 is missing
    publisher.close()
    assert told == [2, 5]
    flat = slots.slot(slots.newest)
    assert {float(value) for tensor in tensors_in(flat, manifest) for value in tensor.unique()} == {5.0}
    assert [wait for wait in simulated.waits() if wait.thread == threading.current_thread().name] == []


def test_what_is_missing_goes_out_between_two_steps_as_soon_as_its_way_is_free() -> None:
    model, told = net().to("sim:0"), list[int]()
    manifest = build_manifest(model, parts_of(model))
    publisher = Publisher(
        model,
        manifest,
        Slots.create(manifest.num_bytes),
        Spans(),
        [],
        lambda part, version, is_late: told.append(version),
        urgent=[Part.WHOLE],
    )
    simulated.set_copies(latency_s=0.2)
    for step in range(1, 3):
        publisher.publish_due(step, {Part.WHOLE: 1})
    simulated.set_copies()
    give_up = time.monotonic() + HANG_S
    while told != [1, 2] and time.monotonic() < give_up:
        publisher.catch_up()
    publisher.close()
    assert told == [1, 2]


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
