"""A user's own loop on several ranks: one stream, disjoint shares, the weights of one process."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from support import saving_loop
from support.ranked import distance, in_ranks
from support.runs import HANG_S, SMALL, events_of, summary_of
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import sbpipe
from sbpipe.errors import ModelError, UserError
from sbpipe.machine.place import ALONE, Place
from sbpipe.ownloop.ranks import refuse_ranks

pytestmark = pytest.mark.slow
RUNS = ("one", "two")
LINK = {key: value for key, value in SMALL.items() if key.startswith("link.")}


def losses(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


def data() -> TensorDataset:
    draw = torch.Generator().manual_seed(0)
    inputs = torch.randn(300, 12, generator=draw)
    return TensorDataset(inputs, (inputs[:, :4].argmax(1) + torch.randint(0, 2, (300,), generator=draw)) % 4)


def net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 4))


def on_cpus(place: Place) -> DeviceMesh:
    """The ranks of a test; by default it would be accelerators, and simulated ones have no collectives."""
    return init_device_mesh("cpu", (place.world,))


def loop(place: Place, path: Path, shard: str, steps: int, kept: dict[str, Any], **settings: Any) -> Any:
    """A loop as a user would write it, for any number of ranks; what it trained, and its last checkpoint."""
    model = net()
    batch_size, accumulate = settings.pop("batch_size", 16), settings.pop("accumulate", 1)
    skipped = settings.pop("skipped", ())
    loader = sbpipe.select(
        DataLoader(data(), batch_size),
        model,
        losses=losses,
        accumulate=accumulate,
        keep=0.5,
        run_dir=path,
        settings={key.replace("__", "."): value for key, value in settings.items()} | LINK,
    )
    if kept:
        model.load_state_dict(kept["model"])
    trained: nn.Module = model
    if place.world > 1 and shard == "none":
        trained = DistributedDataParallel(model)
    elif place.world > 1:
        fully_shard(model, mesh=on_cpus(place))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    loader.attach(optimizer)
    loader.load_state_dict(kept.get("loader", {}))
    ids: list[list[int]] = []
    with loader:
        while loader.steps < steps:
            for batch in loader:
                ids.append(loader.last_ids.tolist())
                if loader.steps in skipped:
                    loader.skip()
                    continue
                loader.weigh(losses(trained, batch)).backward()
                if len(ids) % accumulate == 0:
                    optimizer.step()
                    optimizer.zero_grad()
                if loader.steps == steps:
                    break
        state = {"loader": loader.state_dict(), "model": _whole(model)}
    return ids, state


def _whole(model: nn.Module) -> dict[str, torch.Tensor]:
    tensors = model.state_dict().items()
    return {name: each.full_tensor() if isinstance(each, DTensor) else each for name, each in tensors}


def _loop(
    place: Place, path: Path, shard: str, steps: int, kept: dict[str, Any], settings: dict[str, Any]
) -> Any:
    return loop(place, path, shard, steps, kept, **settings)


@pytest.mark.parametrize(
    ("shard", "settings"),
    [
        ("none", {"mode": "inline", "selection__policy": "steady", "selection__ramp": False}),
        ("full", {"mode": "inline", "selection__policy": "sb", "batch_size": 15}),
        ("none", {"mode": "inline", "selection__policy": "sb", "selection__unbiased": 4.0, "accumulate": 2}),
    ],
)
def test_two_ranks_end_with_the_weights_of_one_and_share_its_batches(
    shard: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    whole, alone = loop(ALONE, tmp_path / RUNS[0], shard, 12, {}, **settings)
    (first, state), (second, of_second) = in_ranks(_loop, tmp_path / RUNS[1], shard, 12, {}, settings)
    assert [ids[::2] for ids in whole] == first
    assert [ids[1::2] for ids in whole] == second
    assert distance(alone["model"], state["model"]) < 1e-6
    assert of_second["loader"] == {}
    steps = [
        [(event["step"], event["candidates"]) for event in events_of(tmp_path / run, "step")] for run in RUNS
    ]
    assert steps[0] == steps[1]


def test_a_loop_goes_on_from_its_checkpoint_with_another_number_of_ranks(tmp_path: Path) -> None:
    settings = {"mode": "inline", "selection__policy": "sb"}
    _, alone = loop(ALONE, tmp_path / RUNS[0], "none", 12, {}, **settings)
    (_, half), _ = in_ranks(_loop, tmp_path / RUNS[1], "full", 7, {}, settings)
    _, end = loop(ALONE, tmp_path / RUNS[1], "none", 12, half, **settings)
    assert distance(alone["model"], end["model"]) < 1e-6


def test_a_batch_that_comes_first_may_be_skipped_also_after_a_resume(tmp_path: Path) -> None:
    """Under a clock the weights are published after it all the same, and every rank has a share of them."""
    settings = {"mode": "inline", "selection__policy": "sb", "skipped": (0, 4)}
    _, alone = loop(ALONE, tmp_path / RUNS[0], "none", 8, {}, **settings)
    (_, half), _ = in_ranks(_loop, tmp_path / RUNS[1], "full", 4, {}, settings)
    (_, end), _ = in_ranks(_loop, tmp_path / RUNS[1], "full", 8, half, settings)
    assert distance(alone["model"], end["model"]) < 1e-6
    assert distance(half["model"], end["model"]) > 0.01


def test_a_selector_of_its_own_scores_with_the_weights_of_a_sharded_model(tmp_path: Path) -> None:
    settings = {
        "mode": "pipelined",
        "selection__policy": "steady",
        "selection__late": "wait",
        "sync__interval": 2,
    }
    (first, _), (second, _) = in_ranks(_loop, tmp_path / "run", "full", 12, {}, settings)
    summary = summary_of(tmp_path / "run")
    assert [len(ids) for ids in (*first, *second)] == [8] * 24
    assert all(not set(one) & set(other) for one, other in zip(first, second, strict=True))
    assert (summary["status"], summary["fill.share"], summary["weights.digest"]) == ("finished", 0.0, None)
    assert summary["sync.published"] >= 6
    assert summary["devices"] == 3


def _stuck(place: Place, path: Path) -> None:
    settings = {"mode": "inline", "selection.policy": "random", "train.ranks_wait_s": 2.0} | LINK
    model = net()
    loader = sbpipe.select(DataLoader(data(), 16), model, losses=losses, run_dir=path, settings=settings)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    loader.attach(optimizer)
    torch.distributed.barrier()
    for batch in loader:
        loader.weigh(losses(model, batch)).backward()
        optimizer.step()
        if place.rank == 0 and loader.steps == 2:
            threading.Event().wait()


def test_a_loop_whose_rank_0_never_comes_back_for_a_batch_ends_on_all_ranks(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"the ranks ended with codes \[6, 6\]"):
        in_ranks(_stuck, tmp_path / "run")
    assert events_of(tmp_path / "run", "step")


def test_torchrun_starts_a_loop_again_whose_rank_was_killed_and_it_goes_on_from_what_it_saved(
    tmp_path: Path,
) -> None:
    (tmp_path / RUNS[0]).mkdir()
    (tmp_path / RUNS[1]).mkdir()
    saving_loop.train(tmp_path / RUNS[0])
    meeting = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    launcher = ["-m", "torch.distributed.run", *meeting, "--max-restarts", "1", "--nproc-per-node", "2"]
    script = [saving_loop.__file__, str(tmp_path / RUNS[1])]
    tests = f"{Path(__file__).parents[1]}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    done = subprocess.run(
        [sys.executable, *launcher, *script],
        env=os.environ | {"PYTHONPATH": tests},
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    assert done.returncode == 0, done.stderr
    (whole,) = _noted(tmp_path / RUNS[0], 1)
    shares = _noted(tmp_path / RUNS[1], 2)
    for rank, notes in enumerate(shares):
        lives = [[note["step"] for note in notes if note["life"] == life] for life in (0, 1)]
        assert lives[0][: saving_loop.KILLED_AT] == list(range(saving_loop.KILLED_AT))
        assert lives[1] == list(range(saving_loop.SAVED_AT, saving_loop.STEPS))
        last = {note["step"]: note["ids"] for note in notes}
        assert last == {note["step"]: note["ids"][rank::2] for note in whole}
    # As many candidates were considered for the very batches of a loop that nobody killed: each once.
    considered = [
        {event["step"]: event["candidates"] for event in events_of(tmp_path / run / "run", "step")}
        for run in RUNS
    ]
    assert considered[0] == considered[1]
    assert len(considered[0]) == saving_loop.STEPS


def _noted(folder: Path, num_ranks: int) -> list[list[dict[str, Any]]]:
    files = [folder / f"rank-{rank}.jsonl" for rank in range(num_ranks)]
    return [[json.loads(line) for line in file.read_text().splitlines()] for file in files]


def _late(place: Place, path: Path) -> str:
    model = net()
    fully_shard(model, mesh=on_cpus(place))
    with pytest.raises(ModelError) as caught:
        sbpipe.select(DataLoader(data(), 16), model, losses=losses, run_dir=path)
    with pytest.raises(UserError) as refused:
        refuse_ranks("Lightning")
    return f"{caught.value} {refused.value}"


def test_a_model_that_was_cut_up_before_select_is_refused(tmp_path: Path) -> None:
    for said in in_ranks(_late, tmp_path / "run"):
        assert "sbpipe.select before fully_shard" in said
        assert "one of 2 training processes" in said
    assert not (tmp_path / "run").exists()
