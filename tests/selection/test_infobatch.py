"""InfoBatch: who is dropped, what the others weigh, and that nobody is scored."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.runs import events_of, small, train_inline

from sbpipe.config import SelectionConfig, resolve
from sbpipe.errors import ConfigError
from sbpipe.records import TrainBatch
from sbpipe.runs.events import EventLog
from sbpipe.selection import TrainedLosses, build_policy, coins
from sbpipe.trainer.steering.steering import Steering
from sbpipe.trainer.step_outcome import StepOutcome

KNOWN = np.concatenate([np.full(60, 0.1), np.full(40, 1.0)]).astype(np.float32)


def test_only_those_below_the_mean_may_be_dropped_and_the_unknown_are_kept() -> None:
    policy = build_policy(SelectionConfig(policy="infobatch", keep=0.7, history=100))
    assert policy.keep_probability(KNOWN, keep=0.7).tolist() == [1.0] * 100, "nothing is known yet"
    policy.consider(KNOWN)
    chances = policy.keep_probability(np.array([0.1, 1.0, np.nan, 0.46, 0.45], np.float32), keep=0.7)
    assert chances == pytest.approx([0.5, 1.0, 1.0, 1.0, 0.5]), (
        "0.3 of all is half of the 0.6 that lie below 0.46"
    )
    kept = policy.draw(policy.keep_probability(np.tile(KNOWN, 200), keep=0.7), coins(0, 0, np.arange(20_000)))
    assert kept.mean() == pytest.approx(0.7, abs=0.02)


def test_not_more_than_nearly_all_below_the_mean_can_be_dropped() -> None:
    policy = build_policy(SelectionConfig(policy="infobatch", keep=0.1, history=100))
    policy.consider(KNOWN)
    assert policy.keep_probability(KNOWN, keep=0.1)[0] == pytest.approx(0.05)


def test_its_weights_make_the_expected_gradient_that_of_all() -> None:
    config = resolve(
        {"mode": "inline", "selection.policy": "infobatch", "selection.keep": 0.7, "selection.history": 100}
    )
    policy = build_policy(config.selection)
    policy.consider(KNOWN)
    probability, ids = policy.keep_probability(KNOWN, keep=0.7), np.arange(100)
    weigh = Steering(config, None, EventLog(None, "trainer"), TrainedLosses(100)).weigher(  # type: ignore[arg-type]
        TrainBatch(0, ids, ids, KNOWN, probability, ids, ids, 0, ids + 0.7, ids > 0)
    )
    assert weigh is not None
    assert np.allclose(probability * weigh(torch.zeros(100)).numpy(), 1.0)


def test_a_run_scores_nobody_and_learns_from_training(run_path: Path) -> None:
    config = small(
        mode="inline", selection__policy="infobatch", selection__keep=0.6, data__examples=160, train__steps=40
    )
    summary = train_inline(config, run_path)
    assert summary["selector.scored"] == 0
    events = events_of(run_path, "selection")
    first, later = events[: 160 // 16], events[160 // 16 :]
    assert sum(event["kept"] for event in first) == 160, "in the first epoch nothing is known of anybody"
    # Of all later candidates: those of a few leases were too few to hold their rate on every processor.
    share = sum(event["kept"] for event in later) / sum(event["candidates"] for event in later)
    assert 0.4 < share < 0.85


def test_what_is_known_survives_a_checkpoint() -> None:
    known, heir = TrainedLosses(5), TrainedLosses(5)
    known.see(np.array([1, 3]), np.array([0.5, 2.0], np.float32))
    heir.restore(known.state())
    assert np.array_equal(heir.of(np.arange(5)), known.of(np.arange(5)), equal_nan=True)


def test_another_process_cannot_choose_so() -> None:
    with pytest.raises(ConfigError, match="another process chooses"):
        resolve({"selection.policy": "infobatch"})
    with pytest.raises(ConfigError, match="has weights of its own"):
        resolve({"selection.policy": "infobatch", "mode": "inline", "selection.unbiased": 3.0})


class FarOutcome(StepOutcome):
    """Losses that are still on their way from a device."""

    def __init__(self, step: int, losses: list[float]) -> None:
        ids = np.arange(len(losses))
        halves = (ids + 0.5).astype(np.float32)
        batch = TrainBatch(step, ids, ids, halves, halves, ids, ids, 0, ids + 0.7, ids > 0)
        super().__init__(batch, torch.tensor(losses), torch.empty(0), lambda *_: [])
        self.is_here = False


def steering_of(trained: TrainedLosses, **given: Any) -> Steering:
    config = resolve({"selection.policy": "infobatch", "mode": "inline", **given})
    return Steering(config, None, EventLog(None, "trainer"), trained)  # type: ignore[arg-type]


def test_under_a_clock_losses_on_a_device_are_known_to_the_next_selection() -> None:
    trained = TrainedLosses(3)
    steering_of(trained).observe(FarOutcome(0, [0.5, 1.0, 1.5]))
    assert trained.state().tolist() == [0.5, 1.0, 1.5]


def test_a_checkpoint_holds_the_losses_of_the_last_step_though_they_are_read_late() -> None:
    config = resolve({"selection.policy": "steady"})
    whole, resumed = (Steering(config, None, EventLog(None, "trainer")) for _ in range(2))  # type: ignore[arg-type]
    whole.observe(FarOutcome(0, [0.5, 1.0, 1.5]))
    state = whole.state()
    resumed.restore(state)
    for steering in (whole, resumed):
        steering.observe(FarOutcome(1, [0.2, 0.4, 0.1]))
    assert str(whole.state()) == str(resumed.state())
    assert str(whole.state()) != str(state), "the last step is in it"
