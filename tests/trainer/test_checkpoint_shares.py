"""Checkpoints of a model that is cut up: shares, whole or not at all, read by any number of ranks."""

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from support.ranked import in_ranks
from torch import nn
from torch.distributed.checkpoint import HuggingFaceStorageReader, load
from torch.distributed.tensor import DTensor
from torch.nn import functional

from sbpipe.machine.place import Place
from sbpipe.trainer import checkpoint_file, checkpoint_shares
from sbpipe.trainer.checkpoint import Checkpoints
from sbpipe.trainer.checkpoint_shares import Share, ShareReader
from sbpipe.trainer.ranks import shards
from sbpipe.trainer.ranks.group import Group
from sbpipe.trainer.ranks.saving import Saving
from sbpipe.weights.manifest import ties_of

ROWS, WIDTH = 50, 16


class Tied(nn.Module):
    """An embedding that is the head too, a layer between, a buffer, and a number that one rank has alone."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(ROWS, WIDTH)
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH)])
        self.head = nn.Linear(WIDTH, ROWS, bias=False)
        self.head.weight = self.embedding.weight
        self.one = nn.Parameter(torch.ones(1))
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.head(torch.tanh(self.layers[0](self.embedding(tokens)))) * self.one
        return outputs


def cut_up(place: Place) -> tuple[Group, Tied, torch.optim.Optimizer]:
    """A model of this many ranks after one step."""
    group = Group(place.rank, place.world, torch.device("cpu"), batch_size=4, wait_s=60.0)
    torch.manual_seed(0)
    model, tokens = Tied(), torch.arange(ROWS)
    shards.shard(model, group.device, place.world)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    functional.cross_entropy(model(tokens), tokens).backward()
    optimizer.step()
    return group, model, optimizer


def live(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    return {"model": dict(model.state_dict()), "optimizer": optimizer.state_dict()}


def taken(group: Group, model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[Any, Saving]:
    ties = {f"model/{name}": f"model/{first}" for name, first in ties_of(model).items()}
    state, tensors = checkpoint_shares.cut(live(model, optimizer), ties)
    return state, Saving(group, Share(tensors))


def _save(place: Place, folder: Path, die_at: int = -1) -> Any:
    """Save steps 5, 10 and 15, where rank 1 does not see the folder for the second; the whole for comparison.

    At the step `die_at` rank 1 is killed while it writes.
    """
    group, model, optimizer = cut_up(place)
    checkpoints, errors = Checkpoints(folder, keep=2, warn=lambda text: None), []
    for step in (5, 10, 15):
        state, saving = taken(group, model, optimizer)
        if place.rank == 0:
            errors.append(checkpoints.save_now(step, state, saving.lead))
        elif step == die_at:
            saving._share.lookup_object = lambda index: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore
            saving.follow(folder)
        else:
            saving.follow(folder / "elsewhere" if step == 10 else folder)
    return errors, shards.gathered(live(model, optimizer), is_kept=True)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Any]:
    folder = tmp_path_factory.mktemp("run") / "checkpoints"
    (errors, whole), _ = in_ranks(_save, folder)
    return folder, errors, whole


def assert_same(one: Any, other: Any) -> None:
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for name in one:
            assert_same(one[name], other[name])
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    else:
        assert one == other or isinstance(one, list)


@pytest.mark.slow
def test_shares_are_put_together_to_the_whole_bit_for_bit(saved: tuple[Path, Any, Any]) -> None:
    folder, _, whole = saved
    state = Checkpoints(folder).load_newest()
    assert state is not None
    assert state["step"] == 15
    assert_same(whole["model"], state["model"])
    assert_same(whole["optimizer"]["state"], state["optimizer"]["state"])
    assert state["optimizer"]["param_groups"] == whole["optimizer"]["param_groups"]


@pytest.mark.slow
def test_each_rank_wrote_its_part_once_and_rank_0_none_of_the_others(saved: tuple[Path, Any, Any]) -> None:
    index = torch.load(saved[0] / "step-15.pt", weights_only=True)["shares"]
    numbers = sum(held.numel() for held in Tied().parameters())  # of which the tied ones count once
    sizes = [record["bytes"] for record in index["files"]]
    assert len(sizes) == 2
    assert 3 * 4 * numbers < sum(sizes) < 3 * 4 * numbers + 4000  # weights and two moments, behind a header
    assert max(sizes) < 0.6 * sum(sizes)


@pytest.mark.slow
def test_a_rank_that_cannot_write_is_named_and_leaves_the_checkpoint_before(
    saved: tuple[Path, Any, Any],
) -> None:
    folder, errors, _ = saved
    assert (errors[0], errors[2]) == ("", "")
    assert "rank 1: does not see the folder that rank 0 made. Set checkpoint.whole" in errors[1]
    steps = sorted(path.name.partition(".")[0] for path in folder.iterdir())
    assert steps == ["step-15", "step-15", "step-5", "step-5"]  # a file and a folder each


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["a flipped bit", "cut short", "missing"])
def test_a_damaged_share_gives_way_to_the_checkpoint_before(
    saved: tuple[Path, Any, Any], kind: str, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(saved[0], tmp_path / "checkpoints"))
    path = next(folder.glob("step-15.shares-*")) / "1.safetensors"
    content = path.read_bytes()
    path.unlink()
    if kind != "missing":
        path.write_bytes(content[:-1] + (bytes([content[-1] ^ 1]) if kind == "a flipped bit" else b""))
    said: list[str] = []
    state = Checkpoints(folder, warn=said.append).load_newest()
    assert state is not None
    assert state["step"] == 5
    assert "/1.safetensors" in said[0]
    with pytest.raises(checkpoint_file.Damaged, match=r"1\.safetensors"):
        checkpoint_file.read(folder / "step-15.pt", is_whole=False)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
def test_torchs_own_checkpoints_read_the_files_too(saved: tuple[Path, Any, Any]) -> None:
    folder, _, whole = saved
    shares = next(folder.glob("step-15.shares-*"))
    index = torch.load(folder / "step-15.pt", weights_only=True)["shares"]
    for reader in (ShareReader(shares, index), HuggingFaceStorageReader(str(shares))):
        into = {"model/embedding.weight": torch.zeros(ROWS, WIDTH), "model/one": torch.zeros(1)}
        load(into, storage_reader=reader)
        assert torch.equal(into["model/embedding.weight"], whole["model"]["embedding.weight"])
        assert torch.equal(into["model/one"], whole["model"]["one"])


def _read(place: Place, folder: Path) -> Any:
    """Each of another number of ranks reads its share; the whole of what they have then."""
    _, model, optimizer = cut_up(place)
    state = Checkpoints(folder).load_newest(is_whole=False)
    assert state is not None
    index = state.pop("shares")
    into = shards.room_for(index, {"model": model.state_dict()}, optimizer)
    assert all(isinstance(tensor, DTensor) for tensor in into.values())
    checkpoint_shares.read(folder / index["folder"], index, into)
    state = checkpoint_shares.filled(state, into.__getitem__)
    shards.load_model(model, state["model"])
    shards.load_optimizer(optimizer, state["optimizer"])
    return shards.gathered(live(model, optimizer), is_kept=True)


@pytest.mark.slow
def test_another_number_of_ranks_reads_no_more_than_its_shares(saved: tuple[Path, Any, Any]) -> None:
    folder, _, whole = saved
    for found in in_ranks(_read, folder, world=3):
        assert_same(whole["model"], found["model"])
        assert_same(whole["optimizer"]["state"], found["optimizer"]["state"])


@pytest.mark.slow
def test_a_rank_killed_while_it_writes_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    with pytest.raises(AssertionError, match="waited for all ranks to write their shares of a checkpoint"):
        in_ranks(_save, folder, 15)
    assert (folder / next(folder.glob("step-15.shares-*")) / "0.safetensors").exists()
    state = Checkpoints(folder).load_newest()
    assert state is not None
    assert state["step"] == 5
    Checkpoints(folder).save_now(17, {"model": {}})
    assert not list(folder.glob("step-15*"))


def test_a_checkpoint_of_another_leads_to_no_file_outside_its_folder(tmp_path: Path) -> None:
    (tmp_path / "secret.safetensors").write_bytes(b"")
    index = {"folder": "..", "tensors": {}, "files": [{"name": "../secret.safetensors", "bytes": 0}]}
    assert "cannot be read" in checkpoint_shares.fault_of(tmp_path / "shares", index)
