"""Scores that say nothing turn selection uniform, with a reason, and it comes back when they do."""

from pathlib import Path

import numpy as np
import pytest
from support.runs import events_of, small, train_inline

from sbpipe.records import Predicted
from sbpipe.trainer.steering.trust import LEARNING, Trust

BATCH = 128
EVEN = np.full(10, 40, np.int32)
ONE = np.array([391, *[1] * 9], np.int32)


class Source:
    """Train batches whose scores correlate with fresh losses as told."""

    def __init__(self, seed: int = 0) -> None:
        self._generator = np.random.default_rng(seed)

    def feed(
        self,
        trust: Trust,
        steps: int,
        correlation: float,
        *,
        batch: int = BATCH,
        predicted: np.ndarray = EVEN,
    ) -> list[float]:
        factors = []
        for _ in range(steps):
            scores, noise = self._generator.normal(size=(2, batch)).astype(np.float32)
            losses = correlation * scores + np.float32(1.0 - correlation**2) ** 0.5 * noise
            trust.observe(scores, losses, np.full(batch, 0.25, np.float32), [Predicted(predicted)])
            factors.append(trust.factor)
        return factors


@pytest.mark.parametrize("batch", [16, 128])
def test_noise_is_found_out_within_the_first_hundred_steps(batch: int) -> None:
    trust = Trust(0.1)
    factors = Source().feed(trust, 100, 0.0, batch=batch)
    assert factors[:LEARNING] == [1.0] * LEARNING
    assert "rank correlation with fresh losses" in trust.reason
    assert factors[-1] < 0.9


def test_scores_that_say_something_are_trusted_throughout() -> None:
    for seed in range(5):
        trust = Trust(0.1)
        assert set(Source(seed).feed(trust, 300, 0.25)) == {1.0}


def test_trust_comes_back_and_does_not_swing_at_the_bound() -> None:
    trust, source = Trust(0.1), Source()
    source.feed(trust, 100, 0.0)
    assert trust.factor == 0.0
    assert source.feed(trust, 200, 0.5)[-1] == 1.0
    factors = source.feed(trust, 600, 0.1)
    crossings = np.count_nonzero(np.diff(np.array(factors) > 0.5))
    assert crossings <= 4


def test_scores_of_one_value_say_nothing() -> None:
    trust, losses = Trust(0.1), np.random.default_rng(0).random(BATCH).astype(np.float32)
    for _ in range(60):
        trust.observe(np.full(BATCH, 2.303, np.float32), losses, np.full(BATCH, 0.25, np.float32))
    assert trust.reason == "they are all 2.303"
    assert trust.factor == 0.0


def test_a_model_that_predicts_one_class_is_not_trusted_unless_nearly_all_data_is_of_it() -> None:
    trust, source = Trust(0.1), Source()
    source.feed(trust, 60, 0.8, predicted=ONE)
    assert trust.reason == "the selector's model predicts class 0 for 98 % of its candidates"
    source.feed(trust, 120, 0.8)
    assert trust.reason == ""
    assert trust.factor == 1.0
    rare = Trust(0.97)
    assert set(source.feed(rare, 60, 0.8, predicted=ONE)) == {1.0}


def test_fills_do_not_count() -> None:
    trust = Trust(0.1)
    unscored = np.full(BATCH, np.nan, np.float32)
    for _ in range(200):
        trust.observe(unscored, np.ones(BATCH, np.float32), np.ones(BATCH, np.float32))
    assert trust.factor == 1.0


def test_it_goes_on_from_a_checkpoint_as_if_nothing_had_happened() -> None:
    whole, first, second = Trust(0.1), Trust(0.1), Trust(0.1)
    source, again = Source(), Source()
    wanted = source.feed(whole, 120, 0.05, predicted=ONE)
    told = again.feed(first, 50, 0.05, predicted=ONE)
    second.restore(first.state())
    assert told + again.feed(second, 70, 0.05, predicted=ONE) == wanted
    assert second.state() == whole.state()


@pytest.mark.parametrize("policy", ["steady", "sb"])
def test_a_run_on_noise_says_so_once_and_a_steered_policy_selects_uniformly(
    policy: str, run_path: Path
) -> None:
    config = small(
        mode="inline",
        selection__policy=policy,
        train__steps=100,
        train__batch_size=64,
        loss__name="support.losses:dealt_to_others",
    )
    summary = train_inline(config, run_path)
    told = [event["text"] for event in events_of(run_path, "warning")]
    assert len([text for text in told if "scores say nothing about losses" in text]) == 1
    steps = events_of(run_path, "step")
    assert steps[0]["trust"] == 1.0
    assert steps[-1]["trust"] == 0.0
    assert "rank correlation" in summary["selection.doubt"]
    if policy == "steady":
        assert steps[-1]["strength"] == 0.0
        assert "Candidates are chosen uniformly" in told[-1]
        assert "worse than random selection (uniform for" in summary["verdict.headline"]
    else:
        assert "goes by them all the same" in told[-1]
        assert "perhaps worse" in summary["verdict.headline"]
