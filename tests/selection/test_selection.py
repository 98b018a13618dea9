"""Algorithm 2 and what follows from it, against slow references written here."""

from collections import deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbpipe.config import SelectionConfig
from sbpipe.records import Floats
from sbpipe.selection import POLICIES, build_policy, choose, coins
from sbpipe.selection.draws import independent
from sbpipe.selection.history import BLOCK, History


def one_by_one(window: deque[float], scores: Floats) -> Floats:
    """The paper's Algorithm 2: add to the history, then look up the share strictly below."""
    shares = []
    for score in scores:
        window.append(float(score))
        shares.append(sum(other < score for other in window) / len(window))
    return np.array(shares, np.float32)


@settings(deadline=None)
@given(
    st.integers(1, 300),
    st.lists(st.integers(1, 3 * BLOCK + 40), min_size=1, max_size=4),
    st.integers(0, 2**32 - 1),
)
def test_the_cdf_equals_the_one_by_one_loop_exactly(capacity: int, lengths: list[int], seed: int) -> None:
    random, history, window = np.random.default_rng(seed), History(capacity), deque[float](maxlen=capacity)
    for length in lengths:
        scores = random.integers(0, 40, length).astype(np.float32)  # many ties
        shares = history.cdf(scores)
        history.push(scores)
        assert np.array_equal(shares, one_by_one(window, scores))
    assert history.state().tolist() == list(window)


def test_the_cdf_of_a_long_lease_equals_the_one_by_one_loop_too() -> None:
    for capacity in (7, 300, 2000):
        scores = np.random.default_rng(capacity).random(1500).astype(np.float32)
        history = History(capacity)
        history.push(scores[:50])
        assert np.array_equal(
            history.cdf(scores[50:]), one_by_one(deque(scores[:50].tolist(), maxlen=capacity), scores[50:])
        )


def test_a_score_that_is_not_finite_is_never_kept_and_leaves_no_trace() -> None:
    policy = build_policy(SelectionConfig(policy="sb", history=64))
    policy.consider(np.arange(64, dtype=np.float32))
    probability = policy.keep_probability(np.array([np.nan, 100.0, np.inf, -np.inf], np.float32), keep=1 / 3)
    assert probability[[0, 2, 3]].tolist() == [0.0, 0.0, 0.0]
    assert probability[1] > 0.9
    policy.consider(np.array([np.nan, np.inf], np.float32))
    assert policy.state().tolist() == list(range(64))


def test_a_higher_score_is_kept_more_often_and_the_highest_most() -> None:
    policy = build_policy(SelectionConfig(policy="sb", keep=0.25, history=1000))
    policy.consider(np.random.default_rng(0).permutation(1000).astype(np.float32))
    probability = np.array(
        [policy.keep_probability(np.array([score], np.float32), keep=0.25)[0] for score in range(0, 1001, 10)]
    )
    assert (np.diff(probability) > 0).all()
    assert probability[-1] == pytest.approx(0.999**3, abs=1e-4)


@pytest.mark.parametrize("keep", [0.1, 0.25, 1 / 3, 0.5, 1.0])
def test_the_keep_rate_of_sb_is_its_target(keep: float) -> None:
    policy = build_policy(SelectionConfig(policy="sb", keep=keep, history=1024))
    scores = np.random.default_rng(1).exponential(size=60_000).astype(np.float32)
    policy.consider(scores[:2000])
    kept = coins(0, 0, np.arange(58_000)) < policy.keep_probability(scores[2000:], keep=keep)
    assert kept.mean() == pytest.approx(keep, abs=0.01)


def test_random_keeps_its_share_and_full_keeps_all() -> None:
    scores = np.full(50_000, np.nan, np.float32)
    blind = build_policy(SelectionConfig(policy="random", keep=0.3)).keep_probability(scores, keep=0.3)
    assert (coins(3, 1, np.arange(50_000)) < blind).mean() == pytest.approx(0.3, abs=0.01)
    everything = build_policy(SelectionConfig(policy="full", keep=0.3)).keep_probability(scores, keep=0.3)
    assert (coins(3, 1, np.arange(50_000)) < everything).all()


def test_the_coin_of_an_example_depends_on_seed_and_epoch_only() -> None:
    ids = np.array([5, 70_000_000_001, 9])
    assert coins(1, 2, ids)[1] == coins(1, 2, ids[1:])[0]
    assert len({float(coins(seed, epoch, ids)[0]) for seed in (1, 2) for epoch in (1, 2)}) == 4


def test_choosing_stops_behind_the_last_example_that_may_be_kept() -> None:
    probability = np.array([1, 0, 1, 0, 1, 0], np.float32)
    uniform = np.full(6, 0.5)
    is_kept = independent(probability, uniform)
    assert choose(is_kept, 9)[0] == 6
    considered, kept = choose(is_kept, 2)
    assert (considered, kept.tolist()) == (3, [0, 2])


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_goes_on_from_the_state_of_another(name: str) -> None:
    scores = np.random.default_rng(2).random(700).astype(np.float32)
    old, new = (build_policy(SelectionConfig(policy=name, history=256)) for _ in range(2))
    old.consider(scores[:500])
    new.restore(old.state())
    assert np.array_equal(
        old.keep_probability(scores[500:], keep=1 / 3), new.keep_probability(scores[500:], keep=1 / 3)
    )


def test_shuffled_keeps_as_much_as_sb_but_not_the_hard_ones() -> None:
    scores = np.random.default_rng(0).gamma(2.0, size=40_000).astype(np.float32)
    policies = {name: build_policy(SelectionConfig(policy=name, keep=0.25)) for name in ("sb", "shuffled")}
    chances = {}
    for name, policy in policies.items():
        chunks = []
        for chunk in np.array_split(scores, 400):
            chunks.append(policy.keep_probability(chunk, keep=0.25))
            policy.consider(chunk)
        chances[name] = np.concatenate(chunks)
    assert np.isclose(chances["shuffled"].mean(), chances["sb"].mean())
    assert np.corrcoef(scores, chances["sb"])[0, 1] > 0.7
    assert abs(np.corrcoef(scores, chances["shuffled"])[0, 1]) < 0.02


def test_shuffled_deals_alike_wherever_the_same_scores_are_seen_and_never_to_what_is_not_finite() -> None:
    scores = np.array([1.0, np.nan, 3.0, 2.0, np.inf, 0.5], np.float32)
    here, there = (build_policy(SelectionConfig(policy="shuffled", keep=0.5)) for _ in range(2))
    assert np.array_equal(here.keep_probability(scores, keep=0.5), there.keep_probability(scores, keep=0.5))
    assert here.keep_probability(scores, keep=0.5)[[1, 4]].tolist() == [0.0, 0.0]
