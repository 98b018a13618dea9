"""The engine serves any loop: one of a few lines ends with the weights of ours, also when cut in two."""

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from support.runs import small, train_inline

from sbpipe.config import Config
from sbpipe.process import roles
from sbpipe.process.inline import INLINE
from sbpipe.records import RunEnd
from sbpipe.runs.events import EventLog
from sbpipe.trainer.engine import Engine
from sbpipe.trainer.setup import Setup, prepare
from sbpipe.trainer.step_outcome import DivergedError
from sbpipe.weights.manifest import digest

POLICIES = ("sb", "steady", "random")


def engine_for(setup: Setup) -> Engine:
    """An engine whose selector answers in this process."""
    events, slots = EventLog(None, "trainer"), setup.slots()
    engine = Engine(setup.job(), roles.inline_port(setup, slots, events), slots, events, setup.spans)
    engine.admit(INLINE, "cpu")
    return engine


def train(setup: Setup, engine: Engine, first: int, last: int, total: int) -> None:
    """A loop of one's own."""
    is_stopped = threading.Event()
    for step in range(first, last):
        prepared = engine.next_batch(is_stopped)
        assert prepared is not None
        weigh = engine.weigher(prepared.batch)
        losses = setup.train_step(step, (step + 0.5) / total, prepared.inputs, prepared.targets, weigh)
        engine.take_losses(prepared.batch, losses, prepared.targets)
        engine.finish_step(step + 1)


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
