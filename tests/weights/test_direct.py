"""Slots that lie elsewhere than their marks: here in files, each mapped twice, as two processes would."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from sbpipe.config import resolve, to_json, warnings_of
from sbpipe.errors import ConfigError
from sbpipe.link.messages import Welcome
from sbpipe.models import parts_of
from sbpipe.records import Part
from sbpipe.runs.spans import Spans
from sbpipe.selector.build import Builder
from sbpipe.selector.permission import Permission
from sbpipe.trainer.setup import prepare, slots_for
from sbpipe.weights import direct
from sbpipe.weights.direct import HANDLE_BYTES, BadHandle, CudaSharing, Handle
from sbpipe.weights.gather import Shards
from sbpipe.weights.leftovers import SHARED_MEMORY
from sbpipe.weights.manifest import build_manifest, digest, fast_part
from sbpipe.weights.publisher import Publisher
from sbpipe.weights.replica import Replica, SlotSource
from sbpipe.weights.slots import Slots

CPU = torch.device("cpu")
HANG_S = 30.0


class FileSharing:
    """Memory in files of a folder: what a device's is to CUDA."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._num_made = folder, 0

    def new(self, num_bytes: int, device: torch.device) -> tuple[torch.Tensor, Handle]:
        path = self._folder / str(self._num_made)
        self._num_made += 1
        path.write_bytes(bytes(num_bytes))
        handle = Handle(device="files", memory=str(path).encode().hex(), num_bytes=num_bytes)
        return self.open(handle, device), handle

    def open(self, handle: Handle, device: torch.device) -> torch.Tensor:
        path = bytes.fromhex(handle.memory).decode()
        return torch.from_file(path, shared=True, size=handle.num_bytes, dtype=torch.uint8)


def net(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(12, 12), nn.BatchNorm1d(12), nn.Linear(12, 4))


class Pair:
    """A trainer's slots and a selector's view of them."""

    def __init__(self, folder: Path, name: str) -> None:
        self.model, self.other = net(0), net(1)
        self.manifest = build_manifest(self.model, parts_of(self.model))
        fast = fast_part(self.manifest)
        assert fast is not None
        sharing = FileSharing(folder)
        self.slots = direct.create(
            self.manifest.num_bytes, CPU, name=name, fast_bytes=fast.num_bytes, sharing=sharing
        )
        assert self.slots.path is not None
        self.seen = direct.attach(self.slots.path.name, CPU, sharing=sharing)
        self.publisher = Publisher(
            self.model, self.manifest, self.slots, Spans(), [Part.WHOLE], lambda *told: None
        )
        self.replica = Replica(self.other, self.manifest)

    def refresh(self, version: int, fast_version: int = -1) -> bool:
        return SlotSource(self.seen).refresh(
            self.replica, version, exact=True, deadline_s=HANG_S, fast_version=fast_version
        )

    def move(self) -> None:
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.add_(1.0)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path, f"test-direct-{tmp_path.name}")
    yield made
    made.slots.close()


def test_a_snapshot_passes_through_memory_that_the_shared_file_does_not_hold(pair: Pair) -> None:
    pair.publisher.publish_all(0)
    assert pair.refresh(0)
    assert digest(pair.other) == digest(pair.model)
    assert pair.slots.path is not None
    weights = pair.slots.slot(pair.slots.newest).numpy().tobytes()
    assert len(weights) == pair.manifest.num_bytes == pair.seen.slot_bytes
    assert weights not in pair.slots.path.read_bytes()


def test_the_fast_part_has_slots_of_its_own_there_too(pair: Pair) -> None:
    pair.publisher.publish_all(0)
    pair.refresh(0)
    pair.move()
    pair.publisher[Part.FAST].publish(1)
    assert pair.refresh(0, fast_version=1)
    assert (pair.replica.version, pair.replica.fast_version) == (0, 1)
    assert torch.equal(pair.other[2].bias, pair.model[2].bias)
    assert not torch.equal(pair.other[0].weight, pair.model[0].weight)


def test_a_write_that_comes_into_a_read_is_seen_and_read_again(pair: Pair) -> None:
    pair.publisher.publish_all(0)
    torn: list[torch.Tensor] = []
    load = pair.replica.load

    def load_beside_a_writer(flat: torch.Tensor, part: Part = Part.WHOLE) -> None:
        if not torn:
            # The slot that is being read is taken, half written, and not committed yet.
            index = pair.slots.newest
            pair.publisher[Part.WHOLE].publish(1)
            taken = pair.slots.begin(held=[k for k in range(3) if k not in (index, pair.slots.newest)])
            assert taken == index
            pair.slots.slot(index)[: pair.manifest.num_bytes // 2].fill_(255)
            torn.append(flat.clone())
        load(flat, part)
        assert pair.replica.version == -1

    pair.replica.load = load_beside_a_writer  # type: ignore[method-assign]
    assert SlotSource(pair.seen).refresh(pair.replica, 0, exact=False, deadline_s=HANG_S)
    assert (torn[0] == 255).sum() >= pair.manifest.num_bytes // 2
    assert pair.replica.version == 1
    assert digest(pair.other) == digest(pair.model)


def test_a_checkpoint_and_a_puller_get_host_memory_that_the_next_publish_leaves_alone(pair: Pair) -> None:
    whole = pair.publisher[Part.WHOLE]
    whole.publish(0)
    kept = whole.newest()["flat"]
    assert isinstance(kept, torch.Tensor)
    before = kept.clone()
    pair.move()
    for version in range(1, 4):
        whole.publish(version)
    assert torch.equal(kept, before)
    whole.publish_flat(7, kept)
    assert whole.piece(pair.slots.newest, whole.newest_version, 0, 64) == before[:64].numpy().tobytes()


def test_nothing_stays_in_shared_memory(tmp_path: Path) -> None:
    pair = Pair(tmp_path, "test-direct-close")
    assert len(list(SHARED_MEMORY.glob("sbpipe-test-direct-close*"))) == 2
    pair.slots.close()
    assert list(SHARED_MEMORY.glob("sbpipe-test-direct-close*")) == []


GOOD = json.loads(Handle("gpu", "00ff", 64).text().rstrip(b"\0"))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "no handle"),
        (b"\xff\xfe", "no handle"),
        (b"[" * 4000, "no handle"),
        (b"[]", "other fields"),
        (json.dumps({**GOOD, "more": 1}).encode(), "other fields"),
        (json.dumps({**GOOD, "num_bytes": -1}).encode(), "num_bytes"),
        (json.dumps({**GOOD, "num_bytes": True}).encode(), "num_bytes"),
        (json.dumps({**GOOD, "offset": 1 << 60}).encode(), "offset"),
        (json.dumps({**GOOD, "must_wait": 1}).encode(), "must_wait"),
        (json.dumps({**GOOD, "memory": "0" * 1000}).encode(), "memory"),
    ],
)
def test_a_handle_from_elsewhere_is_checked(text: bytes, reason: str) -> None:
    with pytest.raises(BadHandle, match=reason):
        Handle.read(text)


def test_a_handle_reads_as_it_was_written() -> None:
    handle = Handle("gpu", "00ff", 64, 512, "2f", 3, "ab", must_wait=True)
    assert Handle.read(handle.text().ljust(HANDLE_BYTES, b"\0")) == handle
    with pytest.raises(BadHandle, match="memory"):
        Handle("gpu", "0" * 1000, 64).text()


@pytest.mark.parametrize(
    ("counter", "reason"), [(b"/etc/passwd", "torch's"), (b"/torch_1_2_3/../x", "torch's")]
)
def test_only_counters_of_torch_are_opened(counter: bytes, reason: str) -> None:
    with pytest.raises(BadHandle, match=reason):
        CudaSharing().open(Handle("gpu", "00", 64, counter=counter.hex()), torch.device("cuda:0"))
    with pytest.raises(BadHandle, match="hex"):
        CudaSharing().open(Handle("gpu", "zz", 64), torch.device("cuda:0"))


def test_memory_of_another_size_is_refused(tmp_path: Path) -> None:
    class Short(FileSharing):
        def open(self, handle: Handle, device: torch.device) -> torch.Tensor:
            return super().open(handle, device)[:-1]

    slots = direct.create(64, CPU, name="test-direct-short", sharing=FileSharing(tmp_path))
    with pytest.raises(ConfigError, match=r"sync\.direct = True.*another size.*Set sync\.direct = false"):
        direct.attach("sbpipe-test-direct-short", CPU, sharing=Short(tmp_path))
    slots.close()


def test_a_device_that_cannot_share_is_refused_with_a_way_out_and_leaves_nothing(tmp_path: Path) -> None:
    class Refusing(FileSharing):
        def new(self, num_bytes: int, device: torch.device) -> tuple[torch.Tensor, Handle]:
            raise RuntimeError("CUDA error: operation not supported\nCompile with ...")

    with pytest.raises(ConfigError, match=r"\(CUDA error: operation not supported\)\. Set sync\.direct"):
        direct.create(64, CPU, name="test-direct-refused", sharing=Refusing(tmp_path))
    assert list(SHARED_MEMORY.glob("sbpipe-test-direct-refused*")) == []


def test_a_cpu_is_refused_on_either_side() -> None:
    model = net(0)
    config = resolve({"sync.direct": True})
    with pytest.raises(
        ConfigError, match=r"sync\.direct = True: .*train\.device is 'cpu'\. Set sync\.direct"
    ):
        slots_for(config, build_manifest(model, parts_of(model)), CPU, b"session")
    with pytest.raises(ConfigError, match=r"selector\.device is 'cpu'"):
        direct.attach("sbpipe-none", CPU)


def test_slots_of_one_process_stay_on_the_host() -> None:
    model = net(0)
    config = resolve({"sync.direct": True, "mode": "inline"})
    assert not slots_for(config, build_manifest(model, parts_of(model)), CPU).is_direct
    assert any("sync.direct has no effect" in note for note in warnings_of(config))
    assert not any("sync.direct" in note for note in warnings_of(resolve({"sync.direct": True})))


@pytest.mark.parametrize(
    ("beside", "reason"),
    [
        ({"sync.shared_memory": False}, r"sync\.shared_memory = false"),
        ({"train.ranks": 2, "train.shard": "full"}, r"train\.shard = 'full'"),
        ({"train.device": "cpu"}, r"train\.device names 'cpu'"),
        ({"selector.device": "cuda:1,cpu"}, r"selector\.device names 'cpu'"),
    ],
)
def test_settings_that_leave_no_way_are_refused(beside: dict[str, object], reason: str) -> None:
    with pytest.raises(ConfigError, match=rf"sync\.direct = True: .*{reason}.*Set it to false, or"):
        resolve({"sync.direct": True, **beside})
    resolve(beside)


def test_a_trainers_device_is_refused_before_anything_is_loaded() -> None:
    # The data set is not there either: it would be told of first, were it looked for.
    config = resolve({"sync.direct": True, "data.name": "cifar10", "data.path": "/nowhere"})
    with pytest.raises(ConfigError, match=r"train\.device is 'cpu'"):
        prepare(config, "cpu")


def test_a_selector_without_the_trainers_device_is_refused_and_never_pulls() -> None:
    builder = Builder("s-1", Permission(), CPU, Spans())
    welcome = Welcome(to_json(resolve({"sync.direct": True})), "sbpipe-none", 0.5, 4.0)
    with pytest.raises(ConfigError, match=r"sync\.direct = True: .*selector\.device is 'cpu'\. Set"):
        builder(welcome)
    builder.close()


def test_a_model_in_shares_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Shards, "are_in", lambda model: True)
    model = net(0)
    manifest = build_manifest(model, parts_of(model))
    slots = Slots.create(HANDLE_BYTES)
    slots.lie_in([torch.empty(manifest.num_bytes, dtype=torch.uint8) for _ in range(3)])
    with pytest.raises(ConfigError, match=r"sync\.direct = True: .*share.*Set sync\.direct = false"):
        Publisher(model, manifest, slots, Spans(), [], lambda *told: None)
