"""BatchNorm statistics that lag: found out, said, and estimated on candidates."""

import functools

import numpy as np
import pytest
import torch
from support.nets import candidates, exact_losses, needs_int8, net, scorer_of
from torch import Tensor, nn

from sbpipe.scoring import Scorer
from sbpipe.scoring.blindness import Blindness
from sbpipe.scoring.norms import batch_norms
from sbpipe.selection.fidelity import spearman

COUNT = 128


def learned() -> nn.Module:
    """A net that is sure of its answers."""
    model = net("small_resnet")
    with torch.no_grad():
        model.state_dict()["head.weight"].mul_(8.0)
    return model


@functools.cache
def some() -> tuple[Tensor, Tensor]:
    """Candidates, small ones, since many passes go over them; of most the net gives the right class."""
    inputs, targets = candidates(COUNT, side=8)
    with torch.no_grad():
        answers = learned().train()(inputs).argmax(dim=1)
    return inputs, torch.where(torch.arange(COUNT) % 4 > 0, answers, targets)


def lagging(model: nn.Module) -> nn.Module:
    """Statistics as at the start of a training that has moved on: they say the wrong thing of every value."""
    generator = torch.Generator().manual_seed(7)
    for norm in batch_norms(model):
        assert norm.running_mean is not None
        assert norm.running_var is not None
        norm.running_mean.add_(torch.randn(norm.running_mean.shape, generator=generator))
        norm.running_var.mul_(100.0)
    return model


def settled(model: nn.Module) -> nn.Module:
    """Statistics of the very candidates."""
    norms = batch_norms(model)
    model.train()
    for norm in norms:
        norm.momentum = None
    with torch.no_grad():
        model(some()[0])
    return model.eval()


def losses_in_training(model: nn.Module, inputs: Tensor, targets: Tensor) -> np.ndarray:
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad():
        losses = nn.functional.cross_entropy(model.train()(inputs), targets, reduction="none").numpy()
    model.eval().load_state_dict(before)
    return np.asarray(losses)


def score_much(scorer: Scorer, snapshot: dict[str, Tensor], leases: int = 96) -> np.ndarray:
    """Leases of one pass, each with new weights that bring their own statistics; the last scores."""
    inputs, targets = some()
    scores = np.empty(0)
    for _ in range(leases):
        scorer.model.load_state_dict(snapshot)
        scorer.weights_arrived()
        scorer.refresh()
        scores = scorer.examine(inputs, targets).scores
    return np.asarray(scores)


@pytest.mark.parametrize("precision", ["fp32", "bf16", pytest.param("int8", marks=needs_int8)])
def test_a_model_that_is_blind_in_evaluation_mode_is_found_out_and_scored_with_statistics_of_candidates(
    precision: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = lagging(learned())
    snapshot = {name: value.clone() for name, value in model.state_dict().items()}
    inputs, targets = some()
    trained = losses_in_training(model, inputs, targets)
    assert spearman(exact_losses(model, inputs, targets), trained) < 0.3
    scorer = scorer_of(model, precision)
    scorer.prepare(inputs, targets)
    scores = score_much(scorer, snapshot)
    assert scorer.statistics.are_estimated
    assert scorer.statistics.num_estimated > 0
    assert spearman(scores, trained) > 0.8
    assert caplog.text.count("blind in evaluation mode") == 1


def test_a_model_whose_statistics_are_fine_is_scored_to_the_same_bits() -> None:
    model = settled(learned())
    snapshot = {name: value.clone() for name, value in model.state_dict().items()}
    scorer = scorer_of(model)
    scores = score_much(scorer, snapshot)
    assert scorer.statistics.num_checks >= 3
    assert not scorer.statistics.are_estimated
    assert np.array_equal(scores, scorer_of(model, statistics="stored").score(*some()))  # type: ignore[arg-type]


def test_a_check_leaves_neither_statistics_nor_modes_nor_generators_behind() -> None:
    model = lagging(learned())
    snapshot = {name: value.clone() for name, value in model.state_dict().items()}
    scorer, state = scorer_of(model), torch.get_rng_state()
    inputs, _ = some()
    scorer.statistics.of_batch(inputs)
    assert all(torch.equal(value, snapshot[name]) for name, value in model.state_dict().items())
    assert not any(module.training for module in model.modules())
    assert all(norm.momentum == 0.1 for norm in batch_norms(model))
    assert torch.equal(torch.get_rng_state(), state)


def test_statistics_of_candidates_can_be_asked_for_from_the_start() -> None:
    model = lagging(learned())
    inputs, targets = some()
    trained = losses_in_training(model, inputs, targets)
    scorer = scorer_of(model, statistics="candidates")  # type: ignore[arg-type]
    scorer.prepare(inputs, targets)
    scorer.weights_arrived()
    assert spearman(scorer.examine(inputs, targets).scores, trained) > 0.95


def test_few_candidates_are_scored_with_the_statistics_of_more() -> None:
    model = lagging(learned())
    snapshot = {name: value.clone() for name, value in model.state_dict().items()}
    inputs, targets = some()
    scorer = scorer_of(model, statistics="candidates")  # type: ignore[arg-type]
    scorer.weights_arrived()
    whole = scorer.examine(inputs, targets).scores
    model.load_state_dict(snapshot)
    scorer.weights_arrived()
    few = scorer.examine(inputs[:3], targets[:3]).scores
    assert few == pytest.approx(whole[:3], rel=1e-4)


def test_one_bad_check_decides_nothing_and_sight_comes_back() -> None:
    blindness, generator = Blindness(), np.random.default_rng(0)
    batch = generator.random(64).astype(np.float32)
    noise = generator.random(64).astype(np.float32) + 1.0
    for evaluated, is_blind in (
        (batch + 1, False),
        (noise, False),
        (noise, False),
        (noise, True),
        (noise, True),
    ):
        blindness.note(evaluated, batch)
        assert blindness.is_blind == is_blind
    for is_blind in (True, False, False):
        blindness.note(batch + 0.1, batch)
        assert blindness.is_blind == is_blind


def test_a_model_without_batch_norm_is_never_checked() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 10))
    scorer = scorer_of(model)
    score_much(scorer, dict(model.state_dict()), leases=40)
    assert scorer.statistics.num_checks == 0
