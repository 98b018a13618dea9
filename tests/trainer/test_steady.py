"""The parts of `steady`, one by one: ramp, fresh weights, guard, the cdf per class; and what they make
together.
"""

from collections import deque

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sbpipe.config import Config, SelectionConfig, resolve, warnings_of
from sbpipe.records import Floats, TrainBatch
from sbpipe.runs.events import EventLog
from sbpipe.selection import build_policy
from sbpipe.selection.class_history import ClassHistory
from sbpipe.trainer.steering.fresh import FreshWeights, _share_below, _share_below_in_numpy, effective_share
from sbpipe.trainer.steering.guard import CALM, WILD, Guard
from sbpipe.trainer.steering.health import ENOUGH, FOLLOWS, LEARNING, PATIENCE, SWAYS, TOO_MUCH, is_swinging
from sbpipe.trainer.steering.ramp import START, Ramp
from sbpipe.trainer.steering.steering import Steering
from sbpipe.trainer.step_outcome import StepOutcome

# --- the proposal ---------------------------------------------------------------------------------


def scored(count: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).exponential(size=count).astype(np.float32)


def test_at_full_strength_the_proposal_is_sb_bit_for_bit() -> None:
    config = SelectionConfig(policy="sb", keep=0.25, history=256)
    sb, steady = build_policy(config), build_policy(SelectionConfig(policy="steady", keep=0.25, history=256))
    for seed in range(3):
        scores = scored(300, seed)
        assert np.array_equal(
            sb.keep_probability(scores, keep=0.25), steady.keep_probability(scores, strength=1.0, keep=0.25)
        )
        sb.consider(scores)
        steady.consider(scores)


def test_at_no_strength_the_proposal_is_uniform_and_at_any_it_keeps_the_same_share() -> None:
    policy = build_policy(SelectionConfig(policy="steady", keep=0.25, history=1024))
    policy.consider(scored(1024))
    fresh = scored(4096, seed=1)
    assert np.allclose(policy.keep_probability(fresh, strength=0.0, keep=0.25), 0.25)
    for strength in (0.3, 0.7, 1.0):
        assert policy.keep_probability(fresh, strength=strength, keep=0.25).mean() == pytest.approx(
            0.25, abs=0.02
        )


def test_a_score_that_is_not_finite_is_not_kept_at_any_strength() -> None:
    policy = build_policy(SelectionConfig(policy="steady"))
    assert policy.keep_probability(
        np.array([np.nan, np.inf], np.float32), strength=0.0, keep=1 / 3
    ).tolist() == [
        0.0,
        0.0,
    ]


# --- the ramp -------------------------------------------------------------------------------------


def test_the_ramp_follows_the_loss_of_all_candidates_not_of_the_chosen_ones() -> None:
    ramp = Ramp(window=512)
    assert ramp.strength == 0.0
    ramp.observe(np.full(START, 2.0, np.float32), np.full(START, 0.5, np.float32))
    assert ramp.strength == 0.0
    # Candidates are half at loss 0 and half at loss 1; those at loss 1 are kept nine times as often, so nine
    # of ten trained are.
    losses = np.tile(np.array([1.0] * 9 + [0.0], np.float32), 60)
    chances = np.where(losses > 0, np.float32(0.9), np.float32(0.1))
    ramp.observe(losses, chances)
    assert ramp.strength == pytest.approx(1.0 - 0.5 / 2.0, abs=0.01)


def test_the_ramp_is_never_outside_its_range_and_starts_from_a_whole_mean() -> None:
    ramp = Ramp(window=1)
    ramp.observe(np.full(START // 2, 1.0, np.float32), np.ones(START // 2, np.float32))
    assert ramp.strength == 0.0
    ramp.observe(np.full(START, 3.0, np.float32), np.ones(START, np.float32))
    ramp.observe(np.full(START, 9.0, np.float32), np.ones(START, np.float32))
    assert ramp.strength == 0.0
    ramp.observe(np.full(START, -1.0, np.float32), np.ones(START, np.float32))
    assert ramp.strength == 1.0


def test_a_loss_that_starts_below_nothing_is_no_measure_and_selection_stays_uniform() -> None:
    ramp = Ramp(window=128)
    for loss in (-1.0, -5.0):
        ramp.observe(np.full(START, loss, np.float32), np.ones(START, np.float32))
    assert ramp.strength == 0.0


def test_a_loss_that_is_no_number_does_not_choose() -> None:
    ramp = Ramp(window=128)
    ramp.observe(np.full(START, 2.0, np.float32), np.ones(START, np.float32))
    ramp.observe(np.full(START, np.nan, np.float32), np.ones(START, np.float32))
    assert ramp.strength == 0.0


# --- fresh weights --------------------------------------------------------------------------------


def fresh_probability(losses: Floats, keep: float, strength: float) -> Floats:
    """What fresh selection gives each of all candidates, one by one."""
    beta = 1.0 / keep - 1.0
    shares = np.array([np.mean(losses < loss) for loss in losses])
    return np.asarray(strength * shares**beta + (1.0 - strength) * keep, np.float32)


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**32 - 1), st.floats(0.1, 0.5), st.floats(0.0, 0.95))
def test_the_expected_gradient_is_that_of_fresh_selection_whatever_the_stale_scores_were(
    seed: int, keep: float, strength: float
) -> None:
    # A linear model with squared loss on 60 candidates; the stale scores are random, and so are unrelated to
    # the fresh losses.
    random = np.random.default_rng(seed)
    inputs, targets, model = random.normal(size=(60, 3)), random.normal(size=60), random.normal(size=3)
    residuals = inputs @ model - targets
    losses = (residuals**2).astype(np.float32)
    gradients = 2.0 * residuals[:, None] * inputs
    stale = np.clip(random.random(60) ** 2, 0.6 * keep, 1.0 - 1e-6).astype(np.float32)
    weights = all_weights(losses, stale, keep=keep, strength=strength)
    unclipped = weights < 1.0 / keep - 1e-4
    fresh = fresh_probability(losses, keep, strength)
    # Kept with probability q and weighted by w, a candidate adds q * w * gradient to the expected sum.
    expected = ((stale * weights)[unclipped, None] * gradients[unclipped]).sum(axis=0)
    assert unclipped.sum() > 30
    assert np.allclose(
        expected, (fresh[unclipped, None] * gradients[unclipped]).sum(axis=0), rtol=5e-3, atol=5e-2
    )
    assert not np.allclose(
        expected, (stale[unclipped, None] * gradients[unclipped]).sum(axis=0), rtol=5e-3, atol=5e-2
    )


def all_weights(losses: Floats, keep_probability: Floats, *, keep: float, strength: float) -> Floats:
    """The weight of each candidate, were it kept, with a memory that knows all of them well."""
    known = torch.from_numpy(np.tile(losses, 5000))
    fresh = FreshWeights(window=2 * len(known))
    fresh(known, torch.ones(len(known)), strength, keep=np.full(len(known), keep))
    return np.asarray(
        fresh.ratios(
            torch.from_numpy(losses),
            torch.from_numpy(keep_probability),
            strength,
            keep=np.full(len(losses), keep),
        ).numpy()
    )


def test_sampled_batches_push_where_fresh_selection_pushes_on_average() -> None:
    # As trained: batches drawn by stale probabilities, a memory of kept losses only, weights divided by their
    # running mean.
    random = np.random.default_rng(3)
    inputs, targets, model = random.normal(size=(400, 5)), random.normal(size=400), random.normal(size=5)
    residuals = inputs @ model - targets
    losses = (residuals**2).astype(np.float32)
    gradients = 2.0 * residuals[:, None] * inputs
    stale_losses = losses * random.lognormal(sigma=1.5, size=400).astype(np.float32)
    strength, keep = 0.8, 0.25
    stale, fresh_chance = (fresh_probability(values, keep, strength) for values in (stale_losses, losses))
    fresh = FreshWeights(window=1024)
    sums = np.zeros((2, 5))
    for _ in range(600):
        kept = random.random(400) < stale
        aims = np.full(kept.sum(), keep)
        weights = fresh(
            torch.from_numpy(losses[kept]), torch.from_numpy(stale[kept]), strength, keep=aims
        ).numpy()
        sums[0] += (weights[:, None] * gradients[kept]).sum(axis=0)
        sums[1] += gradients[kept].sum(axis=0)
    wanted = (fresh_chance[:, None] * gradients).sum(axis=0)
    weighed_off, unweighed_off = (
        np.linalg.norm(total / 600 - wanted) / np.linalg.norm(wanted) for total in sums
    )
    assert weighed_off < 0.06
    assert unweighed_off > 2 * weighed_off


def test_with_classes_a_fresh_loss_is_ranked_within_its_class_as_its_score_was() -> None:
    fresh = FreshWeights(window=512)  # beta = 1: the target is the cdf itself
    losses, classes = torch.tensor([1.0, 2.0, 10.0, 20.0]), torch.tensor([0, 0, 1, 1])
    chances, half = torch.tensor([0.5, 0.5, 0.25, 0.25]), np.full(4, 0.5)
    assert fresh.ratios(losses, chances, 1.0, classes, keep=half).tolist() == [0.0, 1.0, 0.0, 2.0]
    heir = FreshWeights(window=512)
    heir.restore(fresh.state())
    assert torch.equal(
        heir.ratios(losses, chances, 1.0, classes, keep=half),
        fresh.ratios(losses, chances, 1.0, classes, keep=half),
    )


class AsOnAnAccelerator(FreshWeights):
    """Computes in torch on the CPU too."""

    @staticmethod
    def _in_numpy(tensor: torch.Tensor) -> bool:
        return False


@pytest.mark.parametrize("by_class", [False, True])
@pytest.mark.parametrize("keep", [0.25, 0.3, 0.5])
def test_weights_on_the_cpu_are_those_of_the_accelerators_code_bit_for_bit(
    keep: float, by_class: bool
) -> None:
    random = np.random.default_rng(0)
    one, other = FreshWeights(window=200), AsOnAnAccelerator(window=200)
    for step in range(40):
        losses = random.exponential(size=64).astype(np.float32)
        losses = np.round(losses, 1) if step % 3 == 0 else losses  # ties
        chances = np.minimum(random.uniform(0.01, 1.2, 64), 1.0).astype(np.float32)
        classes = torch.from_numpy(random.integers(0, 5, 64)) if by_class else None
        given = torch.from_numpy(losses), torch.from_numpy(chances), float(random.random()), classes
        aims = np.full(64, keep) if step % 2 else np.where(np.arange(64) < 20, keep, 0.4)
        assert torch.equal(one(*given, keep=aims), other(*given, keep=aims))
        if step == 20:
            one.restore(other.state())


def test_the_memory_of_chosen_losses_estimates_the_cdf_of_all_candidates() -> None:
    random = np.random.default_rng(0)
    losses = random.exponential(size=200_000).astype(np.float32)
    chances = np.clip(np.argsort(np.argsort(losses)) / len(losses), 0.05, 0.99).astype(np.float32)
    kept = random.random(len(losses)) < chances
    fresh = FreshWeights(window=10**6)
    fresh(
        torch.from_numpy(losses[kept]),
        torch.from_numpy(chances[kept]),
        1.0,
        keep=np.full(kept.sum(), 0.5),
    )
    median = torch.tensor([np.median(losses)], dtype=torch.float32)
    # beta = 1, so the target is the cdf itself; q = 0.999 leaves the weight at the target.
    assert float(fresh.ratios(median, torch.tensor([0.999]), 1.0, keep=np.full(1, 0.5))[0]) == pytest.approx(
        0.5, abs=0.01
    )


def test_a_batch_that_was_corrected_meanwhile_pushes_less() -> None:
    fresh = FreshWeights(window=512)
    random = torch.Generator().manual_seed(0)
    usual = torch.rand(256, generator=random) + 1.0
    quarter = np.full(128, 0.25)
    fresh(usual, torch.full((256,), 0.25), 1.0, keep=np.full(256, 0.25))
    sharp = torch.full((128,), 0.8)
    assert fresh(torch.full((128,), 0.1), sharp, 1.0, keep=quarter).mean() < 0.05
    assert fresh(torch.full((128,), 3.0), sharp, 1.0, keep=quarter).mean() > 0.3


def test_weights_are_bounded_and_examples_kept_without_a_choice_count_once() -> None:
    fresh = FreshWeights(window=512)
    losses, quarter = torch.arange(128.0), np.full(128, 0.25)
    weights = fresh(losses, torch.cat([torch.ones(64), torch.full((64,), 1e-6)]), 1.0, keep=quarter)
    assert weights[:64].tolist() == [1.0] * 64
    assert float(weights.max()) < 4.2
    assert float(fresh.ratios(losses, torch.full((128,), 1e-6), 1.0, keep=quarter).max()) == 4.0


def test_weights_are_one_on_average_however_biased_their_estimate_is() -> None:
    fresh = FreshWeights(window=512)
    random = torch.Generator().manual_seed(0)
    quarter = np.full(128, 0.25)
    chance = torch.full((128,), 0.1)  # far less than the keep rate: the ratios are far above one
    means = [
        float(fresh(torch.rand(128, generator=random), chance, 0.5, keep=quarter).mean()) for _ in range(150)
    ]
    assert means[0] > 1.5
    assert sum(means[-20:]) / 20 == pytest.approx(1.0, abs=0.05)


def test_the_effective_share_is_one_for_equal_weights_and_falls_with_their_spread() -> None:
    assert effective_share(np.full(10, 0.3, np.float32)) == pytest.approx(1.0)
    assert effective_share(np.array([1.0] * 5 + [0.0] * 5, np.float32)) == pytest.approx(0.5)
    assert effective_share(np.zeros(4, np.float32)) == 0.0


# --- the guard ------------------------------------------------------------------------------------


def test_the_guard_closes_while_the_loop_swings_down_to_uniform_and_opens_again() -> None:
    guard = Guard()
    for _ in range(50):
        guard.observe(1.0, 0.9)
    assert guard.factor == 1.0
    for _ in range(50):
        guard.observe(WILD + 1.0, 0.9)
    assert guard.factor < 0.01
    for _ in range(300):
        guard.observe(CALM - 1.0, 0.9)
    assert guard.factor > 0.95


def test_a_small_effective_sample_size_closes_the_guard_too_and_the_unknown_alarms_nobody() -> None:
    guard = Guard()
    for _ in range(50):
        guard.observe(None, None)
    assert guard.factor == 1.0
    for _ in range(50):
        guard.observe(None, 0.05)
    assert guard.factor < 0.01


# --- the cdf per class ----------------------------------------------------------------------------


@settings(deadline=None)
@given(st.integers(1, 60), st.lists(st.integers(1, 50), min_size=1, max_size=4), st.integers(0, 2**32 - 1))
def test_the_cdf_per_class_equals_the_one_by_one_loop(capacity: int, lengths: list[int], seed: int) -> None:
    random, history, window = (
        np.random.default_rng(seed),
        ClassHistory(capacity),
        deque[tuple[float, int]](maxlen=capacity),
    )
    for length in lengths:
        scores, classes = random.integers(0, 9, length).astype(np.float32), random.integers(0, 3, length)
        expected = []
        for score, group in zip(scores, classes, strict=True):
            window.append((float(score), int(group)))
            own = [other for other, its_group in window if its_group == group]
            expected.append(sum(other < score for other in own) / len(own))
        assert np.array_equal(history.cdf(scores, classes), np.array(expected, np.float32))
        history.push(scores, classes)


def test_without_classes_the_cdf_per_class_is_the_global_one_and_its_state_can_be_handed_over() -> None:
    scores = scored(100)
    by_class = build_policy(SelectionConfig(policy="sb", history=64, history_by="class"))
    plain = build_policy(SelectionConfig(policy="sb", history=64))
    assert np.allclose(
        by_class.keep_probability(scores, keep=1 / 3), plain.keep_probability(scores, keep=1 / 3)
    )
    classes = np.arange(100) % 3
    by_class.consider(scores, classes)
    heir = build_policy(SelectionConfig(policy="sb", history=64, history_by="class"))
    heir.restore(by_class.state(), classes[-64:])
    assert np.array_equal(
        heir.keep_probability(scores, classes, keep=1 / 3),
        by_class.keep_probability(scores, classes, keep=1 / 3),
    )


# --- together -------------------------------------------------------------------------------------


def steering_of(config: Config, num_examples: int = 1000, num_classes: int = 2) -> Steering:
    return Steering(config, np.arange(num_examples) % num_classes, EventLog(None, "trainer"))


def outcome_of(batch: TrainBatch, losses: torch.Tensor, num_classes: int = 2) -> StepOutcome:
    """A step on examples whose class is their id's remainder."""
    return StepOutcome(
        batch, losses, losses, lambda ids, _: np.bincount(ids % num_classes, minlength=num_classes).tolist()
    )


def a_batch(step: int, example_ids: list[int], chance: float = 0.25) -> TrainBatch:
    ids = np.array(example_ids)
    zeros = np.zeros(len(ids), np.int64)
    chances = np.full(len(ids), chance, np.float32)
    aims, nobody = np.full(len(ids), 1 / 3), np.zeros(len(ids), bool)
    return TrainBatch(step, ids, zeros, chances, chances, zeros, zeros, 0, aims, nobody)


def test_steering_of_sb_changes_nothing_and_still_measures() -> None:
    steering = steering_of(resolve({"selection.policy": "sb"}))
    for step in range(8):
        batch = a_batch(step, list(range(64)))
        assert steering.weigher(batch) is None
        steering.observe(outcome_of(batch, torch.full((64,), 1.0 / (step + 1))))
    assert steering.proposal == 1.0
    assert steering.health.last.swing == pytest.approx(0.0)
    assert steering.health.last.strength is None


@pytest.mark.parametrize("policy", ["steady", "spread"])
def test_a_run_that_swings_closes_the_guard_and_warns_once(
    policy: str, caplog: pytest.LogCaptureFixture
) -> None:
    ramp = {"selection.ramp": False} if policy == "steady" else {}
    steering = steering_of(resolve({"selection.policy": policy, **ramp}))
    for step in range(2 * PATIENCE + 20):
        batch = a_batch(
            step, [2 * k + step // 2 % 2 for k in range(64)]
        )  # two steps of one class, two of the other
        assert (steering.weigher(batch) is not None) == (policy == "steady")
        steering.observe(outcome_of(batch, torch.ones(64)))
    assert steering.health.last.swing is not None
    assert steering.health.last.swing > WILD
    assert steering.strength < 0.01
    warnings = [record.message for record in caplog.records if "the loop swings" in record.message]
    assert len(warnings) == 1
    assert "selection.soften" in warnings[0]
    advised = resolve({"selection.policy": policy, "selection.soften": 0.3})
    assert warnings_of(advised) == [], "what is advised has an effect"


def test_a_run_that_swings_only_at_first_is_not_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    steering = steering_of(resolve({"selection.policy": "sb"}))
    for step in range(LEARNING + 2 * PATIENCE):
        observe_waves(steering, step, in_batches=step < LEARNING + 40, in_predictions=step < LEARNING + 40)
    assert not swing_warnings(caplog)


def observe_waves(steering: Steering, step: int, *, in_batches: bool, in_predictions: bool) -> None:
    """Two steps of one class, two of the other, in what is trained and in what the model predicts."""
    wave = step // 2 % 2
    steering.health.predicted(
        np.array([400 * wave, 400 - 400 * wave] if in_predictions else [200, 200], np.int32)
    )
    ids = [2 * k + wave for k in range(64)] if in_batches else list(range(64))
    steering.observe(outcome_of(a_batch(step, ids), torch.ones(64)))


def swing_warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if "the loop swings" in record.message]


@pytest.mark.parametrize(
    ("in_batches", "in_predictions", "count"), [(True, True, 1), (True, False, 0), (False, True, 0)]
)
def test_a_run_is_warned_of_once_both_its_batches_and_its_model_swing(
    in_batches: bool, in_predictions: bool, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    steering = steering_of(resolve({"selection.policy": "sb"}))
    for step in range(LEARNING + ENOUGH - 1):
        observe_waves(steering, step, in_batches=in_batches, in_predictions=in_predictions)
    assert not swing_warnings(caplog)
    for step in range(LEARNING + ENOUGH - 1, LEARNING + PATIENCE):
        observe_waves(steering, step, in_batches=in_batches, in_predictions=in_predictions)
    warnings = swing_warnings(caplog)
    assert len(warnings) == count
    for text in warnings:
        assert f"at step {LEARNING + ENOUGH - 1} " in text
        assert "(prediction swing)" in text
        assert "selection.policy = 'steady'" in text


def test_where_predictions_are_not_known_only_a_greater_swing_of_the_batches_tells() -> None:
    assert is_swinging(FOLLOWS + 0.1, SWAYS + 0.1)
    assert not is_swinging(None, SWAYS + 0.1)
    assert not is_swinging(FOLLOWS + 0.1, None)
    assert is_swinging(TOO_MUCH + 0.1, None)


def test_a_selector_that_counts_other_classes_is_not_listened_to() -> None:
    steering = steering_of(resolve({"selection.policy": "sb"}))
    for step in range(12):
        steering.health.predicted(np.array([3, 5] if step % 2 else [5, 3, 9], np.int32))
        steering.health.predicted(np.array([5, 3, 8], np.int32))
        steering.observe(outcome_of(a_batch(step, [0, 1]), torch.ones(2)))
    assert steering.health.last.prediction_swing is not None


def test_the_parts_can_be_switched_off_one_by_one() -> None:
    off = {
        "selection.policy": "steady",
        "selection.ramp": False,
        "selection.reweight": False,
        "selection.guard": False,
    }
    steering = steering_of(resolve(off))
    assert (steering.strength, steering.weigher(a_batch(0, [0]))) == (1.0, None)
    assert steering_of(resolve({**off, "selection.ramp": True})).strength == 0.0
    assert steering_of(resolve({**off, "selection.soften": 0.3})).proposal == pytest.approx(0.7)
    assert steering_of(resolve({**off, "selection.reweight": True})).weigher(a_batch(0, [0])) is not None


def test_a_steering_that_was_restored_goes_on_alike() -> None:
    config = resolve({"selection.policy": "steady"})
    one, other = steering_of(config), steering_of(config)
    random = np.random.default_rng(0)

    def step(steering: Steering, number: int, losses: torch.Tensor) -> torch.Tensor:
        batch = a_batch(number, list(range(128)), chance=0.4)
        weigh = steering.weigher(batch)
        assert weigh is not None
        weights = weigh(losses)
        steering.health.predicted(np.bincount(np.arange(50 + number) % 2, minlength=2).astype(np.int32))
        steering.observe(outcome_of(batch, losses))
        return weights

    batches = [torch.from_numpy(random.exponential(size=128).astype(np.float32)) / (k + 1) for k in range(20)]
    for number, losses in enumerate(batches[:10]):
        step(one, number, losses)
    other.restore(one.state())
    for number, losses in enumerate(batches[10:], 10):
        assert torch.equal(step(one, number, losses), step(other, number, losses))
        assert one.strength == other.strength > 0.0
    assert one.health.summary() == other.health.summary()


def test_shares_on_a_device_that_adds_in_any_order_are_those_of_the_cpu_to_the_bit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def in_blocks(values: torch.Tensor, dim: int) -> torch.Tensor:
        # As an accelerator adds: blocks, then what came before each; of floats another sum than one by one.
        blocks = values.view(64, -1)
        ahead = torch.stack([torch.zeros_like(blocks[0, 0]), *blocks.sum(1)[:-1]])
        for k in range(1, len(ahead)):
            ahead[k] = ahead[k] + ahead[k - 1]
        inner = [blocks[:, 0]]
        for column in blocks.unbind(1)[1:]:
            inner.append(inner[-1] + column)
        return (torch.stack(inner, 1) + ahead[:, None]).flatten()

    generator = np.random.default_rng(0)
    known = generator.normal(size=4096).astype(np.float32)
    stands_for = (1.0 / generator.uniform(0.01, 1.0, 4096).astype(np.float32)).astype(np.float32)
    losses = known[:128].copy()
    wanted = _share_below_in_numpy(losses, known, stands_for)
    monkeypatch.setattr(torch, "cumsum", in_blocks)
    found = _share_below(*map(torch.from_numpy, (losses, known, stands_for)))
    assert (found.numpy() == wanted).all()
