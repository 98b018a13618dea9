"""Scores come from the weights that arrived, and scoring moves nothing."""

import numpy as np
import pytest
import torch
from torch import nn

from sbpipe.config import LossConfig, ModelConfig
from sbpipe.losses import build_loss
from sbpipe.models import build_model
from sbpipe.scoring import Scorer
from sbpipe.trainer.fidelity import spearman

CPU = torch.device("cpu")


def net() -> nn.Module:
    return build_model(ModelConfig(options={"width": 8}), num_classes=10, input_shape=(3, 32, 32), seed=0)


def scorer_of(model: nn.Module, precision: str = "fp32") -> Scorer:
    return Scorer(model, build_loss(LossConfig()), precision=precision, device=CPU)


def candidates() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(32, 3, 32, 32, generator=generator), torch.randint(0, 10, (32,), generator=generator)


def test_a_score_is_the_loss_in_evaluation_mode() -> None:
    model, (inputs, targets) = net(), candidates()
    wanted = nn.functional.cross_entropy(model.eval()(inputs), targets, reduction="none")
    assert np.allclose(scorer_of(net()).score(inputs, targets), wanted.detach().numpy(), atol=1e-5)


def test_scoring_moves_neither_batch_norm_statistics_nor_the_global_generator() -> None:
    scorer = scorer_of(net())
    before = {name: buffer.clone() for name, buffer in scorer.model.named_buffers()}
    state = torch.get_rng_state()
    scorer.score(*candidates())
    assert all(torch.equal(buffer, before[name]) for name, buffer in scorer.model.named_buffers())
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_one_weight_more_moves_the_scores(precision: str) -> None:
    scorer = scorer_of(net(), precision)
    before = scorer.score(*candidates())
    with torch.no_grad():
        scorer.model.state_dict()[next(name for name in scorer.model.state_dict() if "running_var" in name)].mul_(4.0)
    assert not np.allclose(scorer.score(*candidates()), before, atol=1e-4)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_narrow_precision_ranks_like_fp32(precision: str) -> None:
    wide, narrow = (scorer_of(net(), name).score(*candidates()) for name in ("fp32", precision))
    assert narrow.dtype == np.float32
    assert spearman(narrow, wide) > 0.95


def test_spearman_agrees_with_the_textbook_formula_and_ignores_what_is_not_finite() -> None:
    a, b = np.array([1, 2, 3, 4, 5], np.float32), np.array([5, 6, 7, 8, 7], np.float32)
    assert spearman(a, b) == pytest.approx(0.8207826816681233)
    assert spearman(np.append(a, np.nan).astype(np.float32), np.append(b, 1).astype(np.float32)) == pytest.approx(
        0.8207826816681233
    )
    assert np.isnan(spearman(a, np.ones(5, np.float32)))
