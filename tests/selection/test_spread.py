"""Policy `spread` against a slow reference, and what a set that covers residuals must be."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbpipe.config import SelectionConfig
from sbpipe.records import Floats
from sbpipe.selection import build_policy, set_coins
from sbpipe.selection.policies.spread import Spread, cover
from sbpipe.selection.policy import SetPolicy

OPEN = np.ones(64, bool)
NOBODY = np.zeros(64, bool)


def residuals(count: int = 64, axes: int = 10, seed: int = 0) -> Floats:
    """softmax - onehot of a model that is right about most."""
    rng = np.random.default_rng(seed)
    logits = 4.0 * rng.normal(size=(count, axes))
    chances = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    right = np.where(rng.random(count) < 0.8, logits.argmax(axis=1), rng.integers(0, axes, count))
    chances[np.arange(count), right] -= 1.0
    return chances.astype(np.float32)


def slow_cover(rows: Floats, uniform: np.ndarray, strength: float) -> list[int]:
    """k-means++ as it is written down: squared distances to the nearest kept row, the origin kept first."""
    kept: list[int] = []
    for number in uniform:
        left = [k for k in range(len(rows)) if k not in kept]
        if number < 1.0 - strength:
            kept.append(left[int(number / (1.0 - strength) * len(left))])
            continue
        near = [np.zeros_like(rows[0]), *rows[kept]]
        nearest = [min(float(((row - other) ** 2).sum()) for other in near) for row in rows]
        sums = np.cumsum([0.0 if k in kept else nearest[k] for k in range(len(rows))])
        kept.append(int(np.flatnonzero(sums > (number - 1.0 + strength) / strength * sums[-1])[0]))
    return sorted(kept)


@pytest.mark.parametrize("strength", [1.0, 0.6, 0.0])
@pytest.mark.parametrize("seed", range(4))
def test_it_keeps_what_the_slow_reference_keeps(seed: int, strength: float) -> None:
    rows, uniform = residuals(seed=seed), np.random.default_rng(seed).random(16)
    kept = cover(rows, 16, uniform, strength=strength, due=NOBODY, is_open=OPEN)
    assert np.flatnonzero(kept).tolist() == slow_cover(rows, uniform, strength)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(1, 60), st.floats(0.0, 1.0), st.integers(0, 10**6), st.booleans())
def test_it_keeps_as_many_as_asked_of_those_that_can_be_kept(
    size: int, count: int, strength: float, seed: int, is_flat: bool
) -> None:
    rng = np.random.default_rng(seed)
    rows = np.zeros((size, 3), np.float32) if is_flat else rng.normal(size=(size, 3)).astype(np.float32)
    is_open = rng.random(size) < 0.7
    uniform = np.minimum(rng.random(count) * 1.01, 1.0 - 2.0**-53)
    kept = cover(rows, count, uniform, strength=strength, due=np.zeros(size, bool), is_open=is_open)
    assert kept.sum() == min(count, is_open.sum())
    assert not (kept & ~is_open).any()


def test_a_set_covers_directions_instead_of_piling_up_where_losses_are_largest() -> None:
    # Forty copies of the largest error, and four small ones that point elsewhere.
    rows = np.zeros((64, 5), np.float32)
    rows[:40, 0] = 1.4
    rows[40:44, 1:5] = 0.7 * np.eye(4, dtype=np.float32)
    kept = cover(rows, 5, np.linspace(0.05, 0.95, 5), strength=1.0, due=NOBODY, is_open=OPEN)
    assert kept[:40].sum() == 1
    assert kept[40:44].all()


def test_at_strength_zero_everybody_has_the_same_chance() -> None:
    rows, counts = residuals(), np.zeros(64)
    for seed in range(2_000):
        uniform = np.random.default_rng(seed).random(16)
        counts += cover(rows, 16, uniform, strength=0.0, due=NOBODY, is_open=OPEN)
    # Five standard deviations of a share of 1/4.
    assert np.abs(counts / 2_000 - 0.25).max() < 5 * np.sqrt(0.25 * 0.75 / 2_000)


def test_a_longer_residual_is_kept_more_often() -> None:
    rows, counts = residuals(), np.zeros(64)
    for seed in range(300):
        uniform = np.random.default_rng(seed).random(16)
        counts += cover(rows, 16, uniform, strength=1.0, due=NOBODY, is_open=OPEN)
    by_length = np.argsort((rows**2).sum(axis=1))
    assert counts[by_length[-16:]].sum() > 3 * counts[by_length[:16]].sum()


def test_who_is_due_is_kept_first_and_what_is_not_finite_never() -> None:
    rows, scores = residuals(), np.ones(64, np.float32)
    scores[7], rows[8, 2] = np.nan, np.inf
    due = NOBODY.copy()
    due[[3, 7, 50]] = True
    policy = build_policy(SelectionConfig(policy="spread", keep=0.25))
    assert isinstance(policy, SetPolicy)
    kept = policy.choose_set(scores, rows, 16, set_coins(0, 0, 0, 16), strength=1.0, due=due)
    assert kept.sum() == 16
    assert kept[[3, 50]].all()
    assert not kept[[7, 8]].any()


def test_who_is_passed_over_is_kept_only_where_others_are_not_enough() -> None:
    residuals = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    scores, coins = np.full(40, 3.0, np.float32), np.random.default_rng(1).random(30)
    over = np.arange(40) % 4 == 0
    policy, nobody = Spread(SelectionConfig()), np.zeros(40, bool)
    for strength in (0.0, 0.5, 1.0):
        kept = policy.choose_set(
            scores, residuals, 30, coins, strength=strength, due=nobody, passed_over=over
        )
        assert kept.tolist() == (~over).tolist()
    more = policy.choose_set(
        scores, residuals, 35, np.append(coins, coins[:5]), strength=1.0, due=nobody, passed_over=over
    )
    assert int(more.sum()) == 35
    assert more[~over].all()


def test_beyond_the_outlier_quantile_nothing_is_kept_where_outliers_are_skipped() -> None:
    config = SelectionConfig(policy="spread", keep=0.25, outliers="skip", outlier_quantile=0.9)
    policy = build_policy(config)
    scores = np.linspace(0.0, 1.0, 64, dtype=np.float32)
    policy.consider(scores)
    assert isinstance(policy, SetPolicy)
    kept = policy.choose_set(scores, residuals(), 50, set_coins(0, 0, 0, 50), strength=1.0, due=NOBODY)
    assert kept.sum() == 50
    assert not kept[58:].any()


def test_without_residuals_a_higher_score_is_kept_more_often_and_the_rate_is_kept() -> None:
    policy = Spread(SelectionConfig(policy="spread", keep=0.25))
    probability = policy.keep_probability(np.array([0.01, 0.1, 1.0, 3.0] * 16, np.float32), keep=0.25)
    assert (np.diff(probability[:4]) > 0).all()
    assert probability.sum() == pytest.approx(16.0, abs=1e-4)
    even = policy.keep_probability(np.array([0.01, 0.1, 1.0, 3.0], np.float32), keep=0.25, strength=0.0)
    assert np.allclose(even, 0.25)


def test_the_draws_of_a_lease_depend_on_its_place_alone() -> None:
    assert np.array_equal(set_coins(1, 2, 384, 16), set_coins(1, 2, 384, 32)[:16])
    assert not np.array_equal(set_coins(1, 2, 384, 16), set_coins(1, 2, 512, 16))
