"""Ranks: shares of one stream, the same weights as one trainer, the same snapshots, whatever is cut up."""

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.ranked import distance, train_all, train_ranks, weights_in
from support.runs import events_of, small, train_inline
from torch import nn

from sbpipe.config import Config, resolve
from sbpipe.errors import ConfigError
from sbpipe.export.load import load
from sbpipe.export.write import export
from sbpipe.machine.place import ALONE, Place, own_place
from sbpipe.records import Part
from sbpipe.runs.directory import RunDir, is_started_again
from sbpipe.selection import POLICIES
from sbpipe.trainer.first_weights import read_weights
from sbpipe.trainer.ranks.shards import blocks_of
from sbpipe.trainer.ranks.share import joined, share_of, share_size, shown
from sbpipe.trainer.ranks.word import By, Do, Word, weights_of_share
from sbpipe.trainer.steering.fresh import FreshWeights

CLOSE = 1e-6
"""Shares add up in another order than a whole batch: equal but for the rounding of sums."""
PLAIN = {"model__name": "support.ranked:plain_net", "model__options": {}, "checkpoint__every": 5}


def ranked(**changes: Any) -> Config:
    return small(**({"mode": "inline", "train__ranks": 2} | PLAIN | changes))


# --- shares ---------------------------------------------------------------------------------------


@given(count=st.integers(1, 40), world=st.integers(1, 9))
def test_shares_are_disjoint_complete_and_come_back_in_order(count: int, world: int) -> None:
    ids = np.arange(100, 100 + count)
    shares = [share_of(ids, rank, world) for rank in range(world)]
    assert sorted(np.concatenate(shares).tolist()) == ids.tolist()
    assert [len(share) for share in shares] == [share_size(count, rank, world) for rank in range(world)]
    padded = [torch.from_numpy(np.append(share, [-1] * (len(shares[0]) - len(share)))) for share in shares]
    assert joined(padded, count).tolist() == ids.tolist()


def test_a_rank_without_an_example_is_shown_one() -> None:
    assert shown(np.array([7, 8]), 2, 3).tolist() == [7]
    assert shown(np.array([7, 8]), 1, 3).tolist() == [8]


def test_a_word_is_numbers_and_back() -> None:
    word = Word(Do.STEP, 12, 0.25, By.TABLE, Part.FAST, {Part.WHOLE: 4, Part.FAST: 2}, position=7)
    assert Word.of(word.row) == word
    assert word.due(12) == [Part.WHOLE, Part.FAST]
    assert word.due(10) == [Part.FAST]
    assert Word(Do.STEP).due(3) == []


def test_shares_are_weighed_as_the_batch_is_but_for_its_own_losses() -> None:
    draw = np.random.default_rng(0)
    fresh = FreshWeights(window=4096)
    chances, keep = draw.uniform(0.1, 1.0, 64).astype(np.float32), np.full(64, 0.3)
    for _ in range(50):
        losses = torch.from_numpy(draw.exponential(size=64).astype(np.float32))
        recent = fresh.recent(chances, 0.8, None, keep=keep)
        whole = fresh(losses, torch.from_numpy(chances), 0.8, keep=keep)
    assert recent is not None
    word = Word(Do.STEP, by=By.RECENT, table=recent.table)
    shares = [weights_of_share(word, share_of(losses, rank, 3).contiguous(), rank, 3) for rank in range(3)]
    found = joined([nn.functional.pad(share, (0, 1)) for share in shares if share is not None], 64)
    assert float((found - whole).abs().max()) < 0.1  # 64 of 3,200 losses are not known yet
    assert float(np.corrcoef(found, whole)[0, 1]) > 0.99


# --- places ---------------------------------------------------------------------------------------


def test_ranks_have_equal_cores_side_by_side() -> None:
    places = [Place(rank, 2, rank, 2) for rank in range(2)]
    assert [place.cores([0, 1, 2, 3], 0) for place in places] == [[0, 1], [2, 3]]
    assert [place.cores([0, 1, 2, 3], 1) for place in places] == [[0], [2]]
    assert [place.cores([5], 0) for place in places] == [[5], [5]]


def test_a_place_is_what_torchrun_says() -> None:
    told = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    assert own_place({}) is None
    assert own_place(told) == Place(3, 4, 1, 2)
    again = own_place(told | {"TORCHELASTIC_RESTART_COUNT": "2", "TORCHELASTIC_MAX_RESTARTS": "3"})
    assert again == Place(3, 4, 1, 2, num_restarts=2, may_restart=True)
    assert ALONE.world == 1


def test_a_launch_has_the_name_that_torchrun_was_given_or_the_folder_that_it_made() -> None:
    told = {"RANK": "0", "WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": "none"}
    assert own_place(told) == Place(0, 1, 0, 1)
    assert own_place(told | {"TORCHELASTIC_RUN_ID": "job 7"}) == Place(0, 1, 0, 1, launch="job 7")
    for attempt in range(2):
        file = {"TORCHELASTIC_ERROR_FILE": f"/tmp/none_x1/attempt_{attempt}/0/error.json", "GROUP_RANK": "0"}
        assert own_place(told | file) == Place(0, 1, 0, 1, launch="/tmp/none_x1")
        # The folder of another host's torchrun: what is written has the name of rank 0's.
        assert own_place(told | file | {"GROUP_RANK": "1"}) == Place(0, 1, 0, 1)
    for odd in ("", "error.json", "/tmp/x/0/error.json"):
        assert own_place(told | {"TORCHELASTIC_ERROR_FILE": odd, "GROUP_RANK": "0"}) == Place(0, 1, 0, 1)


@pytest.mark.parametrize("num_restarts", [0, 1])
def test_a_run_is_that_of_the_same_launch_however_its_ranks_counted_restarts(
    num_restarts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job 7")
    same, other, nameless = (
        Place(0, 2, 0, 1, num_restarts=num_restarts, launch=name) for name in ("job 7", "job 8", "")
    )
    assert not is_started_again(tmp_path, same)
    with closing(RunDir.open(tmp_path, resume=False, overwrite=False)) as run_dir:
        run_dir.write_environment({})
        assert not is_started_again(tmp_path, same)  # killed before it was a run
        run_dir.write_config(small())
    assert is_started_again(tmp_path, same)
    for stranger in (other, nameless, ALONE):
        assert not is_started_again(tmp_path, stranger)
    # It has no way to tell, and writes nothing: rank 0 refuses for both.
    assert is_started_again(tmp_path, Place(1, 2, 0, 1, num_restarts=num_restarts)) == bool(num_restarts)


def test_what_ranks_cannot_do_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"train.replicas = 2: is no setting any more.*train.ranks"):
        resolve({"train.replicas": 2})
    with pytest.raises(ConfigError, match=r"train.accumulate = 2: the ranks cut the batch already"):
        resolve({"train.accumulate": 2, "train.ranks": 2})
    with pytest.raises(ConfigError, match=r"train.shard = 'full'.*train.amp = 'bf16'"):
        resolve({"train.shard": "full", "train.ranks": 2, "train.amp": "fp16"})


# --- what is cut up -------------------------------------------------------------------------------


class Tied(nn.Module):
    """Two layers that share a weight, in a list beside one that does not."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.ReLU())])
        self.head = nn.Linear(4, 4)
        self.head.weight = self.layers[0].weight


def test_a_block_that_shares_a_weight_stays_with_the_root() -> None:
    model = Tied()
    assert blocks_of(model) == [model.layers[1]]
    assert len(blocks_of(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)))) == 2


# --- runs -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_ranks_end_with_the_weights_of_one(tmp_path: Path) -> None:
    alone = tmp_path / "one"
    train_inline(ranked(train__ranks=1, selection__policy="sb"), alone)
    runs = [
        (ranked(selection__policy="sb", train__shard=shard), tmp_path / shard) for shard in ("none", "full")
    ]
    for (_, path), summary in zip(runs, train_all(runs), strict=True):
        assert distance(weights_in(alone), weights_in(path)) < CLOSE
        assert (summary["ranks"], summary["devices"]) == (2, 2)
        given = read_weights("", str(path)), load(export(path).folder)[0].state_dict()
        assert [distance(weights_in(path), each) for each in given] == [0.0, 0.0]


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [15, 1])
def test_shares_that_are_not_alike_count_by_their_examples(batch_size: int, tmp_path: Path) -> None:
    changes = {"train__batch_size": batch_size, "selection__policy": "full", "optim__lr": 0.02}
    train_inline(ranked(train__ranks=1, **changes), tmp_path / "one")
    runs = [(ranked(train__shard=shard, **changes), tmp_path / shard) for shard in ("none", "full")]
    train_all(runs)
    for _, path in runs:
        assert distance(weights_in(tmp_path / "one"), weights_in(path)) < CLOSE


@pytest.mark.slow
def test_every_policy_considers_and_keeps_on_two_ranks_what_it_does_on_one(tmp_path: Path) -> None:
    """Also those that weigh: `steady` by fresh losses of the whole batch, `infobatch` by chances."""
    # Not `shuffled`: it deals by the bits of the scores, and the weights differ in their last ones.
    policies = [
        policy
        for policy in POLICIES
        if not POLICIES[policy].traits.needs_irreducible and policy != "shuffled"
    ]
    runs = [(ranked(selection__policy=policy), tmp_path / policy) for policy in policies]
    train_all(runs)
    for config, path in runs:
        alone = tmp_path / f"{path.name} alone"
        train_inline(ranked(train__ranks=1, selection__policy=config.selection.policy), alone)
        assert _considered(path) == _considered(alone), path.name
        assert distance(weights_in(alone), weights_in(path)) < 10 * CLOSE, path.name


def _considered(path: Path) -> list[Any]:
    return [
        (event["step"], event["candidates"], event.get("class_counts")) for event in events_of(path, "step")
    ]


@pytest.mark.slow
def test_lockstep_over_the_wire_is_inline_on_two_ranks_too(tmp_path: Path) -> None:
    runs = [
        (ranked(mode=mode, selection__policy="steady"), tmp_path / mode) for mode in ("lockstep", "inline")
    ]
    wire, inline = train_all(runs)
    assert wire["weights.digest"] == inline["weights.digest"]
    assert (wire["staleness.max"], wire["devices"]) == (0, 3)


@pytest.mark.slow
def test_a_pipelined_run_of_two_ranks_trains_every_batch_and_fills_what_is_late(tmp_path: Path) -> None:
    config = ranked(
        mode="pipelined",
        selection__policy="steady",
        selection__late="fill",
        train__steps=30,
        train__shard="full",
    )
    summary = train_ranks(config, tmp_path / "run")
    assert (summary["status"], summary["trained"]) == ("finished", 30 * 16)
    counts = [sum(event["class_counts"]) for event in events_of(tmp_path / "run", "step")]
    assert counts == [16] * 30


@pytest.mark.slow
def test_a_step_in_which_rank_0_hangs_ends_all_ranks(tmp_path: Path) -> None:
    config = ranked(
        selection__policy="full", train__ranks_wait_s=3.0, loss__name="support.losses:stuck_on_rank_0"
    )
    # Their gradients' own group would wait for minutes yet.
    with pytest.raises(AssertionError, match=r"the ranks ended with codes \[6, 6\]"):
        train_ranks(config, tmp_path / "run")
    assert events_of(tmp_path / "run", "step")


@pytest.mark.slow
@pytest.mark.parametrize(("shard", "ranks"), [("full", 1), ("none", 3), ("full", 3)])
def test_a_run_goes_on_with_another_number_of_ranks(shard: str, ranks: int, tmp_path: Path) -> None:
    changes = {"selection__policy": "sb", "train__ema": 0.9, "optim__clip": 1.0, "checkpoint__keep": 9}
    train_inline(ranked(train__ranks=1, **changes), tmp_path / "whole")
    train_ranks(ranked(train__shard="full", **changes), tmp_path / "run")
    assert list((tmp_path / "run" / "checkpoints").glob("step-5.shares-*/1.safetensors"))
    for step in (10, 12):
        (tmp_path / "run" / "checkpoints" / f"step-{step}.pt").unlink()
    other = ranked(train__ranks=ranks, train__shard=shard, **changes)
    if ranks == 1:
        train_inline(other, tmp_path / "run", resume=True)
    else:
        train_ranks(other, tmp_path / "run", resume=True)
    assert events_of(tmp_path / "run", "resumed")[0]["step"] == 5
    assert distance(weights_in(tmp_path / "whole"), weights_in(tmp_path / "run")) < 10 * CLOSE
