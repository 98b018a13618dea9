"""Weights and their version change together, whole or not at all, parameters and buffers."""

import itertools
import threading

import pytest
import torch
from support.runs import HANG_S
from torch import nn

from sbpipe.config import ModelConfig
from sbpipe.errors import PeerLost
from sbpipe.models import build_model, parts_of
from sbpipe.records import Manifest
from sbpipe.runs.spans import Spans
from sbpipe.weights.leftovers import leftovers, sweep
from sbpipe.weights.manifest import LiveTensors, build_manifest, copy, digest, tensors_in, tensors_of
from sbpipe.weights.publisher import PartPublisher
from sbpipe.weights.replica import PulledSource, Replica, SlotSource
from sbpipe.weights.slots import Slots
from sbpipe.weights.transfer import CREDIT, Pull


def net(seed: int = 0) -> nn.Module:
    model = build_model(ModelConfig(options={"width": 8}), num_classes=10, input_shape=(3, 32, 32), seed=seed)
    with torch.no_grad():
        model.train()(
            torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(seed))
        )  # moves the BatchNorm buffers
    return model


def manifest_of(model: nn.Module, dtype: str = "fp32") -> Manifest:
    return build_manifest(model, parts_of(model), dtype)


def publisher_of(model: nn.Module, slots: Slots, committed: list[int] | None = None) -> PartPublisher:
    told = committed if committed is not None else []
    return PartPublisher(
        model, manifest_of(model), slots, Spans(), lambda part, version, is_late: told.append(version)
    )


def test_a_snapshot_carries_every_parameter_and_buffer_bit_for_bit() -> None:
    model, other = net(0), net(1)
    slots = Slots.create(manifest_of(model).num_bytes)
    publisher_of(model, slots).publish(5)
    replica = Replica(other, manifest_of(other))
    assert SlotSource(slots).refresh(replica, 5, exact=False, deadline_s=HANG_S)
    assert replica.version == 5
    assert digest(other) == digest(model)
    assert any("running_mean" in spec.name for spec in replica.manifest.tensors)


def test_the_fast_parts_lie_in_front_and_are_small() -> None:
    manifest = manifest_of(net())
    parts = [spec.part for spec in manifest.tensors]
    assert parts == sorted(parts, key=lambda part: part == "body")
    assert manifest.fast_bytes < manifest.num_bytes / 4


def test_a_narrow_wire_casts_parameters_and_keeps_buffers() -> None:
    specs = {spec.name: spec.dtype for spec in manifest_of(net(), "bf16").tensors}
    assert {dtype for name, dtype in specs.items() if "running" in name} == {"float32"}
    assert "bfloat16" in specs.values()


def test_an_exact_version_is_found_among_newer_ones() -> None:
    model = net()
    slots = Slots.create(manifest_of(model).num_bytes, num_slots=5)
    publisher, digests = publisher_of(model, slots), {}
    for version in range(5):
        with torch.no_grad():
            next(model.parameters()).add_(1.0)
        publisher.publish(version)
        digests[version] = digest(model)
    replica_model = net(1)
    replica = Replica(replica_model, manifest_of(replica_model))
    SlotSource(slots).refresh(replica, 2, exact=True, deadline_s=HANG_S)
    assert (replica.version, digest(replica_model)) == (2, digests[2])


def test_a_version_that_never_comes_is_an_error_with_a_deadline() -> None:
    model = net()
    slots = Slots.create(manifest_of(model).num_bytes)
    with pytest.raises(PeerLost, match="version 3 did not appear"):
        SlotSource(slots).refresh(Replica(model, manifest_of(model)), 3, exact=True, deadline_s=0.05)


def test_a_reader_never_sees_a_torn_snapshot() -> None:
    slots = Slots.create(1 << 16)
    is_over = threading.Event()

    def write() -> None:
        for version in itertools.count():
            index = slots.begin()
            assert index is not None
            slots.slot(index).fill_(version % 251)
            slots.commit(index, version)
            if is_over.is_set():
                return

    writer = threading.Thread(target=write)
    writer.start()
    seen, flat = 0, torch.empty(1 << 16, dtype=torch.uint8)
    while seen < 50:
        version = slots.read(slots.newest, flat.copy_)
        if version is not None and version >= 0:
            assert int(flat.min()) == int(flat.max()) == version % 251
            seen += 1
    is_over.set()
    writer.join()


def test_a_slot_being_written_is_not_read() -> None:
    slots = Slots.create(64)
    assert slots.begin() == 0
    assert slots.read(0, lambda flat: None) is None
    assert slots.find(0, exact=True) is None
    slots.commit(0, 0)
    assert slots.read(0, lambda flat: None) == 0


def test_a_held_slot_is_not_overwritten_and_a_publish_without_a_free_one_is_skipped() -> None:
    model = net()
    slots = Slots.create(manifest_of(model).num_bytes)
    committed: list[int] = []
    publisher = publisher_of(model, slots, committed)
    publisher.publish(0)
    publisher.hold("far", 0)
    publisher.publish(1)
    publisher.hold("farther", 1)
    publisher.publish(2)
    assert not publisher.publish(3)
    assert (publisher.num_published, publisher.num_skipped, committed) == (3, 1, [0, 1, 2])
    publisher.release("far")
    assert publisher.publish(4)
    publisher.hold("far", 4)
    publisher.publish(5)
    assert publisher.publish(6, must=True)
    assert publisher.newest_version == 6


def test_a_piece_is_given_only_while_its_slot_holds_the_version_that_was_asked_for() -> None:
    model = net()
    slots = Slots.create(manifest_of(model).num_bytes)
    publisher = publisher_of(model, slots, [])
    publisher.publish(0)
    index = publisher.hold("far", 0)
    assert index is not None
    assert publisher.piece(index, 0, 0, 8) is not None
    while slots.version(index) == 0:
        publisher.publish(publisher.newest_version + 1, is_urgent=True)
    assert publisher.piece(index, 0, 0, 8) is None, "an urgent publish took the slot, although it was held"


class Rebinding(nn.Module):
    """Its buffer is another tensor after every step."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(2, 2)
        self.register_buffer("mean", torch.zeros(3))

    def move(self) -> None:
        self.mean = self.mean + 1.0


def test_a_buffer_that_its_module_rebinds_is_published_too() -> None:
    model, other = Rebinding(), Rebinding()
    slots = Slots.create(manifest_of(model).num_bytes)
    publisher = publisher_of(model, slots)
    model.move()
    publisher.publish(1)
    SlotSource(slots).refresh(Replica(other, manifest_of(other)), 1, exact=True, deadline_s=HANG_S)
    assert other.mean.tolist() == [1.0, 1.0, 1.0]


class Renaming(nn.Module):
    """Names what it holds otherwise than its modules do, and shares one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(2, 2)
        self.same = self.head
        self.register_state_dict_post_hook(self._rename)

    @staticmethod
    def _rename(module: nn.Module, state: dict[str, torch.Tensor], prefix: str, metadata: object) -> None:
        state[f"{prefix}weight"] = state.pop(f"{prefix}head.weight")


@pytest.mark.parametrize(
    "model", [nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)), Rebinding(), Renaming()]
)
def test_live_tensors_are_what_the_state_dict_tells_now(model: nn.Module) -> None:
    manifest = build_manifest(model, dict.fromkeys(model.state_dict(), "body"))
    live = LiveTensors(model, manifest)
    if isinstance(model, Rebinding):
        model.move()
    told = tensors_of(model, manifest)
    assert [tensor.data_ptr() for tensor in live.read()] == [tensor.data_ptr() for tensor in told]


def test_slots_in_shared_memory_are_seen_by_name_and_gone_after_close() -> None:
    slots = Slots.create(100, name="test-attach")
    assert slots.path is not None
    other = Slots.attach(slots.path.name)
    assert slots.begin(held=[0]) == 1
    slots.slot(1).fill_(7)
    slots.commit(1, 3)
    assert other.version(other.newest) == 3
    assert other.slot(1).tolist() == [7] * 100
    slots.close()
    with pytest.raises(FileNotFoundError):
        Slots.attach("sbpipe-test-attach")


def test_only_slots_whose_owner_is_gone_are_swept() -> None:
    slots = Slots.create(100, name="test-alive")
    assert slots.path is not None
    path = slots.path
    assert path not in leftovers()
    sweep()
    assert path.exists()
    slots.close()


def test_a_file_that_is_no_slots_is_refused() -> None:
    with pytest.raises(OSError, match="not a name"):
        Slots.attach("../etc/passwd")


def pieces_of(flat: torch.Tensor, asked: list[tuple[int, int, int]]) -> list[tuple[int, int, memoryview]]:
    return [
        (version, offset, memoryview(flat[offset : offset + size].numpy().tobytes()))
        for version, offset, size in asked
    ]


def test_a_pull_brings_every_byte_with_at_most_its_credit_on_the_way() -> None:
    flat = torch.arange(1000, dtype=torch.int32).view(torch.uint8)
    pull = Pull(len(flat), 300)
    asked, whole = pull.want(4), None
    while whole is None:
        assert len(asked) <= CREDIT
        more, whole = pull.receive(*pieces_of(flat, asked[:1])[0])
        asked = asked[1:] + more
    assert torch.equal(whole, flat)
    assert pull.done == 4


def test_the_newest_announced_version_wins_after_the_one_being_pulled() -> None:
    flat = torch.zeros(500, dtype=torch.uint8)
    pull = Pull(500, 500)
    asked = pull.want(1)
    assert pull.want(2) == []
    assert pull.want(3) == []
    more, whole = pull.receive(*pieces_of(flat, asked)[0])
    assert whole is not None
    assert more == [(3, 0, 500)]


def test_pieces_that_were_not_asked_for_change_nothing() -> None:
    pull = Pull(500, 500)
    pull.want(1)
    assert pull.receive(9, 0, memoryview(bytes(500))) == ([], None)
    assert pull.receive(1, 0, memoryview(bytes(499))) == ([], None)
    assert pull.receive(1, 7, memoryview(bytes(500))) == ([], None)
    assert pull.gone() == []
    assert pull.want(2) == [(2, 0, 500)]


def test_a_pulled_snapshot_is_applied_whole() -> None:
    model, other = net(0), net(1)
    manifest = manifest_of(model)
    flat = torch.empty(manifest.num_bytes, dtype=torch.uint8)
    copy(tensors_in(flat, manifest), tensors_of(model, manifest))
    source, replica = PulledSource(), Replica(other, manifest)
    source.offer(6, flat)
    assert source.refresh(replica, 0, exact=False, deadline_s=HANG_S)
    assert not source.refresh(replica, 0, exact=False, deadline_s=HANG_S)
    assert (replica.version, digest(other)) == (6, digest(model))


@pytest.mark.gpu
def test_a_snapshot_leaves_the_accelerator_whole() -> None:
    model = net().to(torch.accelerator.current_accelerator())
    slots = Slots.create(manifest_of(model).num_bytes)
    publisher_of(model, slots).publish(1, must=True)
    other = net(1)
    SlotSource(slots).refresh(Replica(other, manifest_of(other)), 1, exact=True, deadline_s=HANG_S)
    assert digest(other) == digest(model)
