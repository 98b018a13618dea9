"""The engine serves any loop: one of a few lines ends with the weights of ours, also when cut in two."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.engines import engine_for, train
from support.runs import small, train_inline

from sbpipe.config import Config
from sbpipe.link.faults import FaultyPort
from sbpipe.process.inline import INLINE
from sbpipe.records import RunEnd, Selection
from sbpipe.trainer.setup import prepare
from sbpipe.trainer.step_outcome import DivergedError
from sbpipe.weights.manifest import digest

POLICIES = ("sb", "steady", "random")


def trained(config: Config, *, pause_at: int = 0) -> str:
    """The weights after a run, or after one that was cut in two at a step."""
    steps, state = config.train.steps, dict[str, Any]()
    for first, last in [(0, pause_at), (pause_at, steps)] if pause_at else [(0, steps)]:
        setup = prepare(config)
        engine = engine_for(setup)
        if first:
            setup.train_step.restore(state)
            engine.restore(state["engine"], first)
        else:
            engine.begin()
        engine.start()
        train(setup, engine, first, last, steps)
        state = setup.train_step.state() | {"engine": engine.state(last)}
        engine.stop(RunEnd.FINISHED)
        engine.close()
    return digest(setup.train_step.model)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_loop_of_a_few_lines_ends_with_the_weights_of_ours(policy: str, run_path: Path) -> None:
    config = small(mode="inline", selection__policy=policy)
    assert trained(config) == train_inline(config, run_path)["weights.digest"]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_restored_engine_goes_on_where_the_saved_one_was(policy: str) -> None:
    config = small(mode="inline", selection__policy=policy)
    assert trained(config, pause_at=5) == trained(config)


def test_any_loop_is_told_when_its_losses_are_no_longer_numbers() -> None:
    setup = prepare(small(mode="inline"))
    engine = engine_for(setup)
    engine.begin()
    engine.start()
    prepared = engine.next_batch(threading.Event())
    assert prepared is not None
    with pytest.raises(DivergedError, match="the training loss is nan at step 0"):
        engine.take_losses(prepared.batch, torch.full((16,), float("nan")), prepared.targets)
    engine.stop(RunEnd.FAILED)
    engine.close()


@pytest.mark.parametrize(("wrong", "keep"), [(None, 1 / 8), (0.2, 1 / 4)])
def test_wrong_labels_keep_the_rate_at_its_usual_bound_also_where_nothing_is_done_about_them(
    wrong: float | None, keep: float
) -> None:
    config = small(
        selection__policy="spread", selection__trust=False, selection__late="fill", train__steps=30
    )
    setup = prepare(config)
    # A selector that is said to be fast and never gets a word: batches are filled, and its speed stays.
    engine = engine_for(setup, lambda port: FaultyPort(port, 0, drop=1.0))
    engine.roster.peers[INLINE].rate = 1e12
    scores = np.where(np.arange(400) % 20, 1e-4, 3.0).astype(np.float32)
    engine.stream.table.record(
        np.arange(400), Selection(0, 0, scores, np.empty(0, np.int32), np.ones(400, np.float32))
    )
    state = engine.steering.state()
    state["trust"]["labels"] |= {"num_classes": 10, "wrong": wrong}
    engine.steering.restore(state)
    engine.begin()
    engine.start()
    train(setup, engine, 0, 30, 30)
    engine.stop(RunEnd.FINISHED)
    engine.close()
    assert engine.stream.keep == keep
