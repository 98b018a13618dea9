"""The effective share of candidates."""

import numpy as np
import pytest

from sbpipe.selection.fidelity import spearman, weighted_spearman
from sbpipe.selection.worth import effective_share, residual_norms


def test_candidates_that_are_all_alike_count_all_and_one_in_ten_counts_a_tenth() -> None:
    alike = effective_share(np.ones(100, np.float32))
    assert alike is not None
    assert alike == pytest.approx((1.0, 0.0))
    few = effective_share((np.arange(1000) % 10 == 0).astype(np.float32))
    assert few is not None
    assert few.share == pytest.approx(0.1)


def test_its_error_is_what_it_varies_by() -> None:
    generator = np.random.default_rng(0)
    found = [effective_share(generator.exponential(size=1000).astype(np.float32)) for _ in range(200)]
    shares = [one.share for one in found if one is not None]
    errors = [one.error for one in found if one is not None]
    assert np.std(shares) == pytest.approx(np.mean(errors), rel=0.2)
    assert np.mean(shares) == pytest.approx(0.5, abs=0.01)  # mean² / mean square of an exponential


def test_norms_are_told_from_the_losses_that_tell_them() -> None:
    probability = np.linspace(0.01, 0.99, 50)
    cross = residual_norms(-np.log(probability).astype(np.float32), loss="cross_entropy", by="loss")
    assert cross == pytest.approx(1.0 - probability, abs=1e-6)
    assert residual_norms(np.array([4.0], np.float32), loss="mse", by="loss") == pytest.approx([2.0])
    assert residual_norms(np.array([0.3], np.float32), loss="bce", by="gradient") == pytest.approx([0.3])
    assert residual_norms(np.ones(5, np.float32), loss="bce", by="loss") is None
    smooth = residual_norms(np.ones(5, np.float32), loss="cross_entropy", by="loss", label_smoothing=0.1)
    assert smooth is None


def test_a_choice_by_score_does_not_hide_the_fidelity_of_all_candidates() -> None:
    generator = np.random.default_rng(1)
    scores = generator.normal(size=40_000).astype(np.float32)
    losses = (0.6 * scores + 0.8 * generator.normal(size=len(scores))).astype(np.float32)
    chance = (np.argsort(np.argsort(scores)) / len(scores)).astype(np.float32) ** 3 * 0.95 + 0.05
    kept = generator.random(len(scores)) < chance
    whole = spearman(scores, losses)
    told, pairs = weighted_spearman(scores[kept], losses[kept], 1.0 / chance[kept])
    hidden = whole - spearman(scores[kept], losses[kept])
    assert hidden > 0.05
    assert abs(whole - told) < 0.5 * hidden
    assert pairs < kept.sum()


def test_with_equal_weights_it_is_the_plain_rank_correlation() -> None:
    generator = np.random.default_rng(2)
    scores, losses = generator.integers(0, 9, (2, 100)).astype(np.float32)
    scores[3] = np.nan
    told, pairs = weighted_spearman(scores, losses, np.full(100, 4.0, np.float32))
    assert told == pytest.approx(spearman(scores, losses))
    assert pairs == pytest.approx(99)
