"""A loop of the user's own ends with the weights of `sbpipe run`, bit for bit, under every clock."""

from pathlib import Path

import pytest
from support.own_loops import loader_of, own_digest, train
from support.runs import small, train_inline, train_over

from sbpipe.trainer.setup import prepare
from sbpipe.weights.manifest import digest

POLICIES = ("spread", "steady", "sb", "random", "full", "infobatch", "topk")


@pytest.mark.parametrize("policy", POLICIES)
def test_inline_equals_run(policy: str, tmp_path: Path) -> None:
    config = small(mode="inline", selection__policy=policy, train__steps=24)
    summary = train_inline(config, tmp_path / "run")
    assert own_digest(config, tmp_path / "own") == summary["weights.digest"]


def test_fixed_lag_equals_run_with_a_selector_process(tmp_path: Path) -> None:
    config = small(mode="fixed-lag", train__steps=16, sync__lag=2, sync__interval=3)
    summary = train_over(config, tmp_path / "run")
    assert own_digest(config, tmp_path / "own") == summary["weights.digest"]


def test_lockstep_with_a_selector_process_equals_inline(tmp_path: Path) -> None:
    inline = small(mode="inline", train__steps=16)
    summary = train_inline(inline, tmp_path / "run")
    assert own_digest(small(mode="lockstep", train__steps=16), tmp_path / "own") == summary["weights.digest"]


def test_resumed_from_the_users_own_checkpoint_equals_whole(tmp_path: Path) -> None:
    config = small(mode="inline", selection__policy="steady", train__steps=20)
    whole = own_digest(config, tmp_path / "whole")
    setup = prepare(config)
    with loader_of(setup, tmp_path / "first") as loader:
        train(loader, setup, 9)
        state = (loader.state_dict(), setup.train_step.state())
    again = prepare(config)
    again.train_step.restore(state[1])
    with loader_of(again, tmp_path / "second") as loader:
        loader.load_state_dict(state[0])
        train(loader, again, 20, first=9)
    assert digest(again.train_step.model) == whole
