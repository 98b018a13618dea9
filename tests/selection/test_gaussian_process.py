"""Predicted scores: the process against a slow one written here, example by example, and what is made of its
predictions.
"""

from statistics import NormalDist

import numpy as np
import pytest

from sbpipe.selection import ScoreCache
from sbpipe.selection.gaussian_process import (
    LENGTHS,
    NOISES,
    SPAN,
    Histories,
    fit,
    log_likelihood,
    predict,
    rank,
)

RNG = np.random.default_rng


def covariance(epochs: list[int], others: list[int], length: float, noise: float) -> np.ndarray:
    return np.array(
        [[1.0 if t == u else (1 - noise) * np.exp(-abs(t - u) / length) for u in others] for t in epochs]
    )


def drawn(epochs: list[int], count: int, length: float, noise: float, seed: int = 0) -> list[np.ndarray]:
    """Examples of a known process, an array per epoch."""
    lower = np.linalg.cholesky(covariance(epochs, epochs, length, noise))
    return list((lower @ RNG(seed).normal(size=(len(epochs), count))).astype(np.float32))


def with_gaps(deviates: list[np.ndarray], share: float, seed: int = 1) -> list[np.ndarray]:
    return [
        np.where(RNG(seed + k).random(len(row)) < share, np.float32(np.nan), row)
        for k, row in enumerate(deviates)
    ]


def of_example(deviates: list[np.ndarray], epochs: list[int], example: int) -> tuple[list[int], np.ndarray]:
    known = [(t, row[example]) for t, row in zip(epochs, deviates, strict=True) if np.isfinite(row[example])]
    return [t for t, _ in known], np.array([x for _, x in known], np.float64)


def test_predictions_are_those_of_a_process_solved_example_by_example() -> None:
    epochs, length, noise, threshold, now = [0, 3, 6, 12], 5.0, 0.1, 0.4, 14
    deviates = with_gaps(drawn(epochs, 60, length, noise), 0.3)
    for row in deviates:
        row[:30], row[30:45] = np.nan, 1.0
    means, deviations, histories = [], [], []
    for example in range(60):
        seen, x = of_example(deviates, epochs, example)
        towards = covariance([now], seen, length, noise).ravel()
        weights = np.linalg.solve(covariance(seen, seen, length, noise), towards) if seen else towards
        means.append(weights @ x if seen else np.nan)
        deviations.append(np.sqrt(1 - weights @ towards))
        histories.append(tuple(seen))
    usual = deviations[histories.index((0, 3, 6, 12))]
    wanted = [threshold + (mean - threshold) * usual / s for mean, s in zip(means, deviations, strict=True)]
    assert len(set(histories)) > 5, "they differ in what is missing, and most were never scored"
    np.testing.assert_allclose(
        predict(Histories(epochs, deviates), now, length, noise, threshold), wanted, rtol=1e-9
    )


def test_the_likelihood_is_the_sum_over_examples() -> None:
    epochs, length, noise = [0, 2, 4, 6, 8], 3.0, 0.2
    deviates = with_gaps(drawn(epochs, 40, length, noise), 0.2)
    total = 0.0
    for example in range(40):
        seen, x = of_example(deviates, epochs, example)
        matrix = covariance(seen, seen, length, noise)
        total -= 0.5 * (np.log(np.linalg.det(matrix)) + x @ np.linalg.solve(matrix, x)) if seen else 0.0
    assert log_likelihood(Histories(epochs, deviates), np.array([length]), np.array([noise]))[
        0
    ] == pytest.approx(total, rel=1e-9)


@pytest.mark.parametrize(("length", "noise"), [(8.0, 0.2), (64.0, 0.05), (2.0, 0.4)])
def test_training_finds_the_process_the_scores_were_drawn_from(length: float, noise: float) -> None:
    epochs = list(range(0, SPAN))
    histories = Histories(epochs, with_gaps(drawn(epochs, 8_000, length, noise), 0.1))
    assert fit(histories) == (length, noise)


def test_one_scored_epoch_tells_nothing_of_time_and_is_trusted() -> None:
    assert fit(Histories([0], drawn([0], 50, 8.0, 0.2))) == (LENGTHS[0], NOISES[0])


def test_scores_count_by_rank_and_equal_ones_alike() -> None:
    deviates, _ = rank(np.array([5, -1, np.nan, -1, 0], np.float32))
    wanted = [NormalDist().inv_cdf(share) for share in (7 / 8, 2 / 8, 2 / 8, 5 / 8)]
    assert np.isnan(deviates[2])
    np.testing.assert_allclose(deviates[[0, 1, 3, 4]], wanted, atol=1e-4)


# --- as a memory ----------------------------------------------------------------------------------


def remembered(columns: list[np.ndarray], every: int = 2, keep: float = 1 / 3) -> ScoreCache:
    cache = ScoreCache(len(columns[0]), every=every, by="gaussian", keep=keep)
    for k, scores in enumerate(columns):
        cache.remember(np.arange(len(scores)), scores.astype(np.float32), k * every)
    return cache


def losses(count: int, epochs: int, noise: float = 0.4) -> list[np.ndarray]:
    """Scores that fall from epoch to epoch around what each example is."""
    return [np.exp(row - k) for k, row in enumerate(drawn(list(range(epochs)), count, 1_000.0, noise))]


def test_higher_scores_never_predict_lower() -> None:
    columns = losses(300, 5)
    for column in columns:
        column[1::2] = column[::2] * (1 + RNG(3).random(150))
    known, is_new = remembered(columns).recall(np.arange(300), 9)
    assert not is_new.any()
    assert (known[1::2] >= known[::2]).all()
    assert np.mean(known[1::2] > known[::2]) > 0.9


def test_predictions_have_the_loss_s_unit_and_foresee_more_than_the_last_score() -> None:
    *columns, future = losses(2_000, 7)
    known, _ = remembered(columns).recall(np.arange(2_000), 11)
    assert columns[-1].min() <= known.min() <= known.max() <= columns[-1].max()
    agreement = [np.corrcoef(np.log(values), np.log(future))[0, 1] for values in (known, columns[-1])]
    assert agreement[0] > agreement[1] + 0.05


def test_whoever_has_less_history_is_nearer_to_an_even_chance() -> None:
    columns = losses(400, 6)
    for column in columns:
        column[:2] = column.max() * 2
    for column in columns[:-1]:
        column[1] = np.nan
    known, is_new = remembered(columns).recall(np.arange(400), 11)
    assert not is_new.any()
    assert np.median(known) < known[1] < known[0]


def test_who_was_never_scored_is_and_then_judged_by_that_until_the_epoch_ends() -> None:
    columns = losses(100, 3)
    for column in columns:
        column[:2] = (np.nan, np.inf)
    cache, some = remembered(columns, every=3), np.arange(4)
    assert cache.recall(some, 7)[1].tolist() == [True, True, False, False]
    cache.remember(some[:2], np.array([7.0, 8.0], np.float32), 7)
    known, is_new = cache.recall(some, 7)
    assert not is_new.any()
    assert known[:2].tolist() == [7.0, 8.0]
    assert (cache.recall(some, 8)[0][:2] <= 8.0).all()


def test_only_the_last_epochs_are_remembered() -> None:
    columns = losses(200, SPAN + 3)
    upside_down = [column[::-1] for column in columns[:3]]
    ids, now = np.arange(200), 2 * (SPAN + 3) - 1
    assert np.array_equal(
        remembered(upside_down + columns[3:]).recall(ids, now)[0], remembered(columns).recall(ids, now)[0]
    )


@pytest.mark.parametrize(
    "column", [np.zeros(9), -np.arange(9.0), np.full(9, np.nan), np.arange(9) * 1e30], ids=str
)
def test_odd_scores_are_borne(column: np.ndarray) -> None:
    known, is_new = remembered([column, column], keep=1.0).recall(np.arange(9), 3)
    assert is_new.all() == np.isnan(column).all()
    assert is_new.all() or np.array_equal(np.argsort(known, kind="stable"), np.argsort(column, kind="stable"))
