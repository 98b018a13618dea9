"""Weights that a model has under two names: sent once, in every way that weights travel, and never apart."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from support.ranked import weights_in
from support.runs import events_of, small, train_inline
from test_direct import FileSharing
from torch import nn

from sbpipe.models import parts_of
from sbpipe.records import Part
from sbpipe.runs.spans import Spans
from sbpipe.trainer.ema import Ema
from sbpipe.weights import direct
from sbpipe.weights.manifest import build_manifest, digest, fast_part
from sbpipe.weights.publisher import Publisher
from sbpipe.weights.replica import PulledSource, Replica, SlotSource
from sbpipe.weights.slots import Slots
from sbpipe.weights.transfer import Pull

HANG_S = 30.0


class Speaker(nn.Module):
    """An embedding that is the head too, as GPT-2's is."""

    def __init__(self, rows: int = 40, width: int = 16, seed: int = 0, is_tied: bool = True) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embedding = nn.Embedding(rows, width)
        self.norm = nn.LayerNorm(width)
        self.body = nn.Linear(width, width)
        self.head = nn.Linear(width, rows, bias=False)
        if is_tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.head(self.norm(torch.tanh(self.body(self.embedding(tokens)))))
        return outputs


def manifest_of(model: nn.Module) -> Any:
    return build_manifest(model, parts_of(model))


def test_a_tensor_with_two_names_lies_in_a_snapshot_once() -> None:
    tied, untied = Speaker(), Speaker(is_tied=False)
    one_copy = sum(-(-parameter.nbytes // 64) * 64 for parameter in tied.parameters())
    assert manifest_of(tied).num_bytes == one_copy
    assert manifest_of(untied).num_bytes == one_copy + 40 * 16 * 4
    assert [spec.also for spec in manifest_of(tied).tensors if spec.also] == [("head.weight",)]


def test_a_vocabulary_is_not_fast_though_its_head_is_small_beside_two_copies() -> None:
    speaker = Speaker(rows=20_000, width=64)
    manifest = manifest_of(speaker)
    assert 0 < manifest.fast_bytes <= 0.02 * manifest.num_bytes
    # Of one that is fast under one name, the other is no part of the rest.
    little = manifest_of(Speaker())
    assert [spec.name for spec in little.tensors if spec.part == "body"] == ["body.weight"]
    assert little.fast_bytes > 40 * 16 * 4


def _arrive(kind: str, trainer: nn.Module, replica: Replica, folder: Path) -> int:
    """Bring a model's weights to a replica; the bytes that travelled."""
    manifest = replica.manifest
    fast = fast_part(manifest)
    assert fast is not None
    sizes: dict[str, Any] = {"fast_bytes": fast.num_bytes, "name": f"test-ties-{folder.name}"}
    sharing = FileSharing(folder)
    cpu = torch.device("cpu")
    if kind == "direct":
        slots = direct.create(manifest.num_bytes, cpu, sharing=sharing, **sizes)
    else:
        slots = Slots.create(manifest.num_bytes, **sizes)
    try:
        publisher = Publisher(trainer, manifest, slots, Spans(), [Part.WHOLE], lambda *told: None)
        publisher.publish_all(3)
        assert slots.path is not None
        if kind != "pulled":
            name = slots.path.name
            seen = direct.attach(name, cpu, sharing=sharing) if kind == "direct" else Slots.attach(name)
            SlotSource(seen).refresh(replica, 3, exact=True, deadline_s=HANG_S)
            return seen.slot_bytes
        source, pull, num_bytes = PulledSource(), Pull(publisher[Part.WHOLE].num_bytes, 1000), 0
        asked, index = pull.want(3), publisher[Part.WHOLE].hold("far", 3)
        assert index is not None
        while asked:
            piece = asked.pop(0)
            sent = publisher[Part.WHOLE].piece(index, 3, piece.offset, piece.offset + piece.num_bytes)
            assert sent is not None
            num_bytes += len(sent)
            more, whole = pull.receive(piece.version, piece.offset, memoryview(sent))
            asked += more
            if whole is not None:
                source.offer(3, whole)
        source.refresh(replica, 3, exact=True, deadline_s=HANG_S)
        return num_bytes
    finally:
        slots.close()


@pytest.mark.parametrize("kind", ["slots", "direct", "pulled"])
@pytest.mark.parametrize("is_tied", [True, False])
def test_ties_travel_once_and_score_alike_in_every_way(kind: str, is_tied: bool, tmp_path: Path) -> None:
    """Also to a model that holds the two apart: both are loaded from one place."""
    trainer, tokens = Speaker(seed=0), torch.arange(40)
    other = Speaker(seed=1, is_tied=is_tied)
    assert _arrive(kind, trainer, Replica(other, manifest_of(trainer)), tmp_path) == sum(
        parameter.nbytes for parameter in trainer.parameters()
    )
    assert digest(other) == digest(trainer)
    assert torch.equal(other(tokens), trainer(tokens))


def test_an_average_follows_a_tied_weight_as_any_other() -> None:
    tied, untied = Speaker(), Speaker(is_tied=False)
    averages = [Ema(tied, 0.9), Ema(untied, 0.9)]
    for model, average in zip((tied, untied), averages, strict=True):
        with torch.no_grad():
            model.embedding.weight.add_(1.0)
        average.update(model, 50)
    one, other = (average.model.get_parameter("embedding.weight") for average in averages)
    assert torch.equal(one, other)


# --- a whole run ----------------------------------------------------------------------------------


class Twice(nn.Module):
    """A layer used twice: under two names, or under one."""

    def __init__(self, shape: tuple[int, ...], num_classes: int, is_tied: bool) -> None:
        super().__init__()
        self.front = nn.Sequential(
            nn.AvgPool2d(4), nn.Flatten(), nn.Linear(shape[0] * (shape[1] // 4) ** 2, 16)
        )
        self.middle = nn.Linear(16, 16)
        self.again = nn.Linear(16, 16) if is_tied else nn.Identity()
        if is_tied:
            self.again.weight, self.again.bias = self.middle.weight, self.middle.bias
        self.head = nn.Linear(16, num_classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.middle(torch.tanh(self.front(images))))
        again = self.middle if isinstance(self.again, nn.Identity) else self.again
        outputs: torch.Tensor = self.head(torch.tanh(again(hidden)))
        return outputs


def tied_net(num_classes: int, input_shape: tuple[int, ...]) -> nn.Module:
    return _seeded(num_classes, input_shape, is_tied=True)


def plain_net(num_classes: int, input_shape: tuple[int, ...]) -> nn.Module:
    return _seeded(num_classes, input_shape, is_tied=False)


def _seeded(num_classes: int, input_shape: tuple[int, ...], *, is_tied: bool) -> nn.Module:
    made = Twice(input_shape, num_classes, is_tied)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    return copy.deepcopy(made)


def test_a_run_with_a_tied_layer_is_that_of_a_layer_used_twice(tmp_path: Path) -> None:
    changes = {"mode": "inline", "model__options": {}, "selection__policy": "sb", "train__steps": 6}
    paths = tmp_path / "tied_net", tmp_path / "plain_net"
    tied, plain = (
        train_inline(small(model__name=f"test_ties:{path.name}", **changes), path) for path in paths
    )
    assert tied["weights.bytes"] == plain["weights.bytes"]
    assert tied["keep_rate"] == plain["keep_rate"]
    steps = [
        [(step["candidates"], step["class_counts"]) for step in events_of(path, "step")] for path in paths
    ]
    assert steps[0] == steps[1]
    one, other = map(weights_in, paths)
    assert all(torch.equal(one[name], other[name]) for name in other)
    assert torch.equal(one["again.weight"], other["middle.weight"])
