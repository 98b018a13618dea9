"""Every policy and option against slow references written here: chances, draws, weights, turns."""

import itertools

import numpy as np
import pytest
import torch

from sbpipe.config import SelectionConfig, resolve, warnings_of
from sbpipe.errors import ConfigError
from sbpipe.models.losses import cross_entropy, gradient_norm
from sbpipe.records import Floats, TrainBatch
from sbpipe.runs.events import EventLog
from sbpipe.selection import POLICIES, build_policy, coins, is_due
from sbpipe.selection.balance import ClassBalance
from sbpipe.selection.draws import inclusion, ranks_within, share_of, systematic
from sbpipe.trainer.steering.steering import Steering

SCORED = [name for name, policy in POLICIES.items() if policy.traits.needs_scores]


def losses(count: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).gamma(0.12, size=count).astype(np.float32)


def frequencies(probability: Floats, draws: int = 20_000) -> np.ndarray:
    """How often each candidate is kept over many coins."""
    starts = np.random.default_rng(5).random(draws)
    kept = np.zeros(len(probability))
    for start in starts:
        kept += systematic(probability, np.full(len(probability), start))
    return kept / draws


def test_a_systematic_draw_keeps_a_fixed_number_and_each_with_its_own_chance() -> None:
    probability = inclusion(losses(48).astype(np.float64), 16.0)
    sizes = {int(systematic(probability, np.full(48, start)).sum()) for start in np.linspace(0, 0.999, 500)}
    assert sizes <= {15, 16, 17}
    assert np.allclose(frequencies(probability), probability, atol=5 * 0.5 / np.sqrt(20_000))
    assert systematic(np.zeros(0, np.float32), np.zeros(0)).tolist() == []


def slow_inclusion(weights: list[float], total: float) -> list[float]:
    """Give every weight its share; who would have more than 1 has 1, and the others share the rest: until
    nobody has more.
    """
    sure: set[int] = set()
    while True:
        rest = [weight if k not in sure else 0.0 for k, weight in enumerate(weights)]
        scale = (total - len(sure)) / sum(rest) if sum(rest) else 0.0
        chances = [1.0 if k in sure else weight * scale for k, weight in enumerate(weights)]
        more = {k for k, chance in enumerate(chances) if chance > 1.0}
        if not more:
            return chances
        sure |= more


@pytest.mark.parametrize("seed", range(8))
def test_chances_are_in_proportion_and_none_is_above_one(seed: int) -> None:
    weights = np.random.default_rng(seed).pareto(0.8, 40)
    chances = inclusion(weights, 13.0)
    assert np.allclose(chances, slow_inclusion(weights.tolist(), 13.0), atol=1e-6)
    assert chances.sum() == pytest.approx(13.0, abs=1e-4)
    assert chances.max() <= 1.0


def test_more_than_there_are_cannot_be_kept_and_nothing_is_kept_of_nothing() -> None:
    assert inclusion(np.array([1.0, 0.0, 3.0]), 9.0).tolist() == [1.0, 0.0, 1.0]
    assert inclusion(np.zeros(3), 2.0).tolist() == [0.0, 0.0, 0.0]


def test_ranks_put_ties_in_order_and_the_unknown_last() -> None:
    assert ranks_within(np.array([2, np.nan, 5, 2, 7, np.inf], np.float32)).tolist() == [3, 1, 4, 2, 5, 0]


def test_topk_keeps_the_highest_of_each_pass() -> None:
    scores = losses(64)
    probability = build_policy(SelectionConfig(policy="topk", keep=0.25)).keep_probability(scores, keep=0.25)
    assert sorted(np.flatnonzero(probability)) == sorted(sorted(range(64), key=lambda k: scores[k])[-16:])
    assert set(probability.tolist()) == {0.0, 1.0}
    assert [share_of(0.25, count) for count in (0, 1, 3, 64)] == [0, 1, 1, 16]


def test_rank_follows_the_rank_inside_the_pass_to_the_power_of_beta() -> None:
    scores, keep = losses(60), 0.25
    place = {k: rank for rank, k in enumerate(sorted(range(60), key=lambda k: scores[k]), start=1)}
    wanted = slow_inclusion([(place[k] / 60) ** (1 / keep - 1) for k in range(60)], keep * 60)
    assert np.allclose(
        build_policy(SelectionConfig(policy="rank", keep=keep)).keep_probability(scores, keep=keep),
        wanted,
        atol=1e-6,
    )


def test_kath18_is_uniform_until_it_pays_and_then_in_proportion_to_the_score() -> None:
    keep = 0.25
    policy = build_policy(SelectionConfig(policy="kath18", keep=keep, history=512))
    even = np.ones(512, np.float32)
    policy.consider(even)
    assert np.allclose(policy.keep_probability(losses(64), keep=keep), keep), "equal scores: nothing to gain"
    skewed = np.where(np.arange(512) % 16 == 0, 10.0, 0.01).astype(np.float32)
    policy.consider(skewed)
    mean, mean_square = float(skewed.mean()), float((skewed**2).mean())
    assert np.sqrt(mean_square) / mean > (1 + 3 * keep) / (3 * keep), "this history is skewed enough"
    wanted = slow_inclusion(losses(64).tolist(), keep * 64)
    assert np.allclose(policy.keep_probability(losses(64), keep=keep), wanted, atol=1e-5)


@pytest.mark.parametrize("name", [name for name in SCORED if name != "shuffled"])
def test_a_higher_score_is_never_less_likely(name: str) -> None:
    policy = build_policy(SelectionConfig(policy=name, keep=0.25, history=256))
    policy.consider(losses(256, seed=1))
    scores = np.sort(losses(40))
    others = losses(63, seed=2)
    # One candidate moves up through the same company.
    chances = [
        policy.keep_probability(np.append(others, score).astype(np.float32), keep=0.25)[-1]
        for score in scores
    ]
    assert (np.diff(chances) >= -1e-6).all()
    assert chances[-1] > chances[0]


def offered(seed: int, count: int = 64) -> tuple[Floats, np.ndarray]:
    """Candidates of two classes, one of them a quarter of all and with tenfold losses."""
    generator = np.random.default_rng(seed)
    classes = (generator.random(count) < 0.25).astype(np.int64)
    return (generator.exponential(size=count) * np.where(classes, 10.0, 1.0)).astype(np.float32), classes


@pytest.mark.parametrize("by", ["all", "class"])
@pytest.mark.parametrize("name", ["kath18", "rank", "rho", "sb", "steady", "topk"])
def test_by_class_every_class_is_kept_at_the_rate_of_all(name: str, by: str) -> None:
    policy = build_policy(SelectionConfig(policy=name, keep=0.5, history=1024, history_by=by))
    policy.consider(*offered(0, 1024))
    chances, classes = [], []
    for seed in range(1, 60):
        scores, own = offered(seed)
        chances.append(policy.keep_probability(scores, own, keep=0.5))
        classes.append(own)
        policy.consider(scores, own)
    chance, hard = np.concatenate(chances), np.concatenate(classes) == 1
    if by == "class":
        assert chance[hard].mean() == pytest.approx(0.5, abs=0.05)
        assert chance[~hard].mean() == pytest.approx(0.5, abs=0.05)
    else:
        assert chance[hard].mean() > 1.8 * chance[~hard].mean(), (
            "without it the class of high losses fills the batches"
        )


@pytest.mark.parametrize("how", ["clip", "skip"])
@pytest.mark.parametrize("name", ["sb", "topk"])
def test_outliers_are_cut_within_a_class_where_classes_are_balanced(name: str, how: str) -> None:
    config = SelectionConfig(
        policy=name, keep=0.5, history=1024, history_by="class", outliers=how, outlier_quantile=0.9
    )
    policy = build_policy(config)
    policy.consider(*offered(0, 1024))
    chances, ranks = [], []
    for seed in range(1, 30):
        scores, own = offered(seed)
        hard = np.flatnonzero(own)
        chances += policy.keep_probability(scores, own, keep=0.5)[hard].tolist()
        ranks += (np.argsort(np.argsort(scores[hard])) / len(hard)).tolist()
        policy.consider(scores, own)
    chance, rank = np.array(chances), np.array(ranks)
    assert chance[(rank > 0.5) & (rank < 0.8)].mean() > 0.5, (
        "a class that is hard as a whole is not cut off as a whole"
    )
    assert chance[(rank > 0.5) & (rank < 0.8)].mean() > chance[rank < 0.4].mean()


def test_a_balanced_score_is_the_one_of_equal_rank_among_all() -> None:
    balance = ClassBalance(build_policy(SelectionConfig(policy="topk")), SelectionConfig(history=256))
    known, known_classes = offered(3, 300)
    balance.consider(known, known_classes)
    score, own = np.array([5.0], np.float32), np.array([1])
    window, groups = known[-256:], known_classes[-256:]
    mates = [*window[1:][groups[1:] == 1].tolist(), 5.0]  # the oldest has made room for the score itself
    share = sum(mate < 5.0 for mate in mates) / len(mates)
    below = sorted(window.tolist())[int(share * 255)], sorted(window.tolist())[int(share * 255) + 1]
    assert below[0] <= balance.adjust(score, own)[0] <= below[1]
    seen = balance.adjust(np.linspace(0.1, 30.0, 50).astype(np.float32), np.ones(50, np.int64))
    assert (np.diff(seen) >= -1e-6).mean() > 0.95  # the window slides while they come
    assert np.isnan(balance.adjust(np.array([np.nan], np.float32), own)).all()


@pytest.mark.parametrize("name", SCORED)
def test_what_is_not_finite_is_never_kept(name: str) -> None:
    policy = build_policy(SelectionConfig(policy=name, keep=0.5))
    policy.consider(losses(64))
    scores = np.append(losses(30), [np.nan, np.inf]).astype(np.float32)
    probability = policy.keep_probability(scores, keep=0.5)
    assert probability[-2:].tolist() == [0.0, 0.0]
    for start in np.linspace(0, 0.999, 40):
        assert not policy.draw(probability, np.full(32, start))[-2:].any()


@pytest.mark.parametrize(
    "name", [name for name in SCORED if name not in ("rho", "spread", "topk", "steady")] + ["random"]
)
def test_unbiased_weights_make_the_expected_gradient_that_of_all_candidates(name: str) -> None:
    config = resolve({"selection.policy": name, "selection.keep": 0.25, "selection.unbiased": 1e6})
    steering = Steering(config, None, EventLog(None, "trainer"))  # type: ignore[arg-type]
    policy = build_policy(config.selection)
    policy.consider(losses(1024, seed=3))
    scores, ids = losses(64) + np.float32(0.05), np.zeros(64, np.int64)
    gradients = np.random.default_rng(4).normal(size=(64, 3)).astype(np.float32)
    probability = policy.keep_probability(scores, keep=0.25)
    weigh = steering.weigher(TrainBatch(0, ids, ids, scores, probability, ids, ids, 0, ids + 0.25, ids > 0))
    assert weigh is not None
    weights = weigh(torch.zeros(64)).numpy()
    # Each candidate is in the batch with its own chance, which the tests of the draws show.
    expected = ((probability * weights)[:, None] * gradients).sum(axis=0)
    assert np.allclose(expected, 0.25 * gradients.sum(axis=0), rtol=1e-4)
    unweighted = (probability[:, None] * gradients).sum(axis=0)
    assert name == "random" or not np.allclose(unweighted, 0.25 * gradients.sum(axis=0), atol=0.5), (
        "without weights it would not be"
    )


def test_independent_coins_keep_each_with_its_own_chance() -> None:
    policy = build_policy(SelectionConfig(policy="sb", keep=0.25))
    policy.consider(losses(1024, seed=3))
    probability = policy.keep_probability(losses(64), keep=0.25)
    kept = np.array([policy.draw(probability, coins(0, epoch, np.arange(64))) for epoch in range(4000)])
    assert np.allclose(kept.mean(axis=0), probability, atol=5 * 0.5 / np.sqrt(4000))


def test_unbiased_weights_are_cut_off() -> None:
    config = resolve({"selection.policy": "sb", "selection.keep": 0.5, "selection.unbiased": 2.0})
    ids = np.zeros(3, np.int64)
    batch = TrainBatch(
        0, ids, ids, losses(3), np.array([1.0, 0.5, 0.01], np.float32), ids, ids, 0, ids + 0.5, ids > 0
    )
    weigh = Steering(config, None, EventLog(None, "trainer")).weigher(batch)  # type: ignore[arg-type]
    assert weigh is not None
    assert weigh(torch.zeros(3)).tolist() == [0.5, 1.0, 2.0]


@pytest.mark.parametrize("name", SCORED)
def test_outliers_count_as_the_quantile_or_not_at_all(name: str) -> None:
    known = np.arange(1000, dtype=np.float32)
    scores = np.append(np.linspace(0, 900, 31), [1e6]).astype(np.float32)
    clip, skip, plain = (
        build_policy(
            SelectionConfig(policy=name, keep=0.25, history=1000, outliers=how, outlier_quantile=0.95)
        )
        for how in ("clip", "skip", "keep")
    )
    for policy in (clip, skip, plain):
        policy.consider(known)
    assert skip.keep_probability(scores, keep=0.25)[-1] == 0.0
    at_the_limit = np.append(scores[:-1], np.quantile(known, 0.95)).astype(np.float32)
    if name != "shuffled":
        assert np.array_equal(
            clip.keep_probability(scores, keep=0.25), plain.keep_probability(at_the_limit, keep=0.25)
        )
    clip.consider(scores)
    assert clip.state()[-1] == 1e6, "the history holds scores as they came"


@pytest.mark.parametrize("every", [1, 2, 3, 7])
def test_everyone_has_one_turn_in_so_many_epochs(every: int) -> None:
    ids = np.arange(5000)
    turns = np.array([is_due(3, epoch, ids, every) for epoch in range(2 * every)])
    assert (turns[:every].sum(axis=0) == 1).all()
    assert np.array_equal(turns[:every], turns[every:])
    assert turns[0].mean() == pytest.approx(1 / every, abs=0.03)
    assert np.array_equal(is_due(3, 0, ids[100:110], every), turns[0][100:110]), "whoever asks"


def test_without_a_floor_nobody_is_due() -> None:
    assert not is_due(0, 0, np.arange(10), 0).any()


def test_the_gradient_norm_is_that_of_the_loss_at_the_logits() -> None:
    logits = torch.randn(20, 7, generator=torch.Generator().manual_seed(0), requires_grad=True)
    targets = torch.arange(20) % 7
    for smoothing in (0.0, 0.2):
        (gradient,) = torch.autograd.grad(
            cross_entropy(logits, targets, label_smoothing=smoothing).sum(), logits
        )
        assert torch.allclose(
            gradient_norm(logits, targets, label_smoothing=smoothing), gradient.norm(dim=1), atol=1e-5
        )


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"selection.policy": "topk", "selection.unbiased": 5.0}, "no chance at all"),
        ({"selection.policy": "steady", "selection.unbiased": 5.0}, "weighs by fresh losses already"),
        ({"selection.policy": "sb", "selection.unbiased": 0.5}, "even weights are 1"),
        ({"selection.score": "gradient", "loss.name": "mse"}, "known for cross_entropy"),
        ({"selection.outliers": "clop"}, "Did you mean 'clip'"),
        ({"selection.policy": "top-k"}, "Did you mean 'topk'"),
    ],
)
def test_options_that_do_not_go_together_are_refused(given: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        resolve(given)


def test_options_of_scores_say_that_policies_without_them_do_not_care() -> None:
    for policy, key in itertools.product(("random", "full"), ("outliers", "score")):
        value = {"outliers": "clip", "score": "gradient"}[key]
        notes = warnings_of(resolve({"selection.policy": policy, f"selection.{key}": value}))
        assert any(f"selection.{key} = {value} has no effect" in note for note in notes)
