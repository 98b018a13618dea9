"""Snapshots of a model that is cut up between ranks: the bytes of the whole, a few tensors at a time."""

import weakref
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.ranked import in_ranks
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional

from sbpipe.machine.place import Place
from sbpipe.models import parts_of
from sbpipe.records import Part
from sbpipe.runs.spans import Spans
from sbpipe.weights import gather
from sbpipe.weights.gather import Shards, buckets
from sbpipe.weights.manifest import build_manifest
from sbpipe.weights.publisher import Publisher
from sbpipe.weights.slots import Slots


@given(sizes=st.lists(st.integers(1, 50), min_size=1, max_size=20), most=st.integers(1, 100))
def test_buckets_hold_every_place_once_and_no_more_than_fits(sizes: list[int], most: int) -> None:
    found = list(buckets(sizes, most))
    assert [place for bucket in found for place in bucket] == list(range(len(sizes)))
    for bucket in found:
        assert len(bucket) == 1 or sum(sizes[place] for place in bucket) <= most


class Speaker(nn.Module):
    """An embedding that is the head too, layers between, and statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.layers = nn.ModuleList([nn.Linear(16, 16) for _ in range(3)])
        self.norm = nn.BatchNorm1d(16)
        self.head = nn.Linear(16, 50, bias=False)
        self.head.weight = self.embedding.weight
        self.one = nn.Parameter(torch.ones(1))  # one rank has nothing of it

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(tokens)
        for layer in self.layers:
            hidden = torch.tanh(layer(hidden))
        outputs: torch.Tensor = self.head(self.norm(hidden)) * self.one
        return outputs


def _publish(place: Place, bucket_bytes: int) -> dict[str, Any]:
    torch.manual_seed(0)
    model, tokens = Speaker(), torch.arange(40)
    manifest = build_manifest(model, parts_of(model))
    twin = Speaker()
    mesh = init_device_mesh("cpu", (place.world,))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    torch.optim.SGD(model.parameters(), lr=0.1).zero_grad()
    functional.cross_entropy(model(tokens), tokens).backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    alive, peaks, gathered = [0], [0], [0]
    whole_of = gather._whole

    def whole(tensor: torch.Tensor) -> torch.Tensor:
        found = whole_of(tensor)
        if found is not tensor:
            size = found.numel() * found.element_size()
            gathered[0] += 1
            alive[0] += size
            peaks[0] = max(peaks[0], alive[0])
            weakref.finalize(found, lambda: alive.__setitem__(0, alive[0] - size))
        return found

    gather._whole, gather.BUCKET_BYTES = whole, bucket_bytes
    slots = Slots.create(manifest.num_bytes)
    told: list[Any] = []
    if place.rank:
        Shards(model, manifest, bucket_bytes).copy_into(None)
        Shards(model, manifest, bucket_bytes).copy_into(None)
        state = {name: _full(tensor) for name, tensor in model.state_dict().items()}
        return {"peak": peaks[0]}
    publisher = Publisher(model, manifest, slots, Spans(), [], lambda *what: told.append(what))
    publisher[Part.WHOLE]._shards = Shards(model, manifest, bucket_bytes)
    assert publisher[Part.WHOLE].publish(1, must=True)
    num_gathered = gathered[0]
    # Every slot is held by somebody who pulls: nothing is published, and the other rank waits for nobody.
    for peer in range(slots.num_slots):
        publisher[Part.WHOLE]._holds[str(peer)] = peer
    assert not publisher[Part.WHOLE].publish(2)
    state = {name: _full(tensor) for name, tensor in model.state_dict().items()}
    twin.load_state_dict(state)
    expected = Slots.create(manifest.num_bytes)
    Publisher(twin, manifest, expected, Spans(), [], lambda *what: None).publish_all(1)
    newest = [each.slot(each.newest) for each in (slots, expected)]
    return {
        "is_equal": torch.equal(*newest),
        "peak": peaks[0],
        "gathered": num_gathered,
        "told": told,
        "names": len(state),
    }


def _full(tensor: Any) -> torch.Tensor:
    whole: torch.Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return whole.detach().clone()


@pytest.mark.slow
def test_a_snapshot_of_shares_is_that_of_the_whole_and_a_bucket_is_all_that_is_held() -> None:
    bucket_bytes = 4000
    first, second = in_ranks(_publish, bucket_bytes)
    assert first["is_equal"]
    assert max(first["peak"], second["peak"]) <= bucket_bytes
    # Embedding and head are one: 3 layers of two, the norm's two, the shared one and the single number.
    assert first["gathered"] == 6 + 2 + 1 + 1
    assert first["told"] == [(Part.WHOLE, 1, False)]
