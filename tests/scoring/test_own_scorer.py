"""Scoring by a user's own losses: at every precision, of models that can be traced and of those that "
"cannot."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from sbpipe.records import Lot
from sbpipe.scoring.int8 import is_available
from sbpipe.scoring.own_scorer import OwnScorer
from sbpipe.selection.fidelity import spearman

CPU = torch.device("cpu")


class Words(nn.Module):
    """A net with branches that tracing cannot follow, called by keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 96)
        self.body = nn.Sequential(nn.Linear(96, 192), nn.GELU(), nn.Linear(192, 8))

    def forward(self, words: Tensor, mask: Tensor) -> dict[str, Tensor]:
        if float(mask.sum()) < 1:
            raise ValueError("nothing to read")
        return {"logits": self.body((self.embed(words) * mask[..., None]).sum(1))}


def word_losses(model: Any, batch: dict[str, Any]) -> Tensor:
    return functional.cross_entropy(model(**batch["x"])["logits"], batch["y"], reduction="none")


def words(count: int = 48) -> Lot:
    generator = torch.Generator().manual_seed(0)
    x = {"words": torch.randint(0, 50, (count, 12), generator=generator), "mask": torch.ones(count, 12)}
    return Lot({"x": x, "y": torch.arange(count) % 8}, count)


def scorer_of(model: nn.Module, precision: str = "fp32", losses: Any = word_losses) -> OwnScorer:
    return OwnScorer(model, losses, precision=precision, device=CPU)


def test_scores_are_the_users_losses() -> None:
    model, lot = Words(), words()
    scored = scorer_of(model).examine(lot, torch.empty(0))
    with torch.no_grad():
        assert np.allclose(scored.scores, word_losses(model, lot.tree).numpy(), atol=1e-6)
    assert scored.residuals is not None
    assert scored.residuals.shape == (48, 8)
    assert scored.predictions is not None


@pytest.mark.parametrize("precision", ["bf16", "int8"])
def test_a_coarse_precision_ranks_like_fp32(precision: str) -> None:
    if precision == "int8" and not is_available():
        pytest.skip("no integer kernels on this CPU")
    torch.manual_seed(0)
    model, lot = Words(), words(64)
    exact = scorer_of(model).examine(lot, torch.empty(0)).scores
    coarse = scorer_of(model, precision)
    assert coarse.precision == precision
    scores = coarse.examine(lot, torch.empty(0)).scores
    assert not np.array_equal(scores, exact)
    assert spearman(scores, exact) > 0.98


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
def test_new_weights_count_from_the_next_pass(precision: str) -> None:
    if precision == "int8" and not is_available():
        pytest.skip("no integer kernels on this CPU")
    model, lot = Words(), words()
    scorer = scorer_of(model, precision)
    before = scorer.examine(lot, torch.empty(0)).scores
    with torch.no_grad():
        model.body[0].weight.mul_(-1.0)
    scorer.weights_arrived()
    assert not np.allclose(scorer.examine(lot, torch.empty(0)).scores, before, atol=1e-3)


def test_a_compiled_pass_scores_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    model, lot = Words(), words()
    exact = scorer_of(model).examine(lot, torch.empty(0)).scores
    compiled = OwnScorer(model, word_losses, precision="fp32", device=CPU, compiled=True)
    assert np.allclose(compiled.examine(lot, torch.empty(0)).scores, exact, atol=1e-6)


def test_scoring_touches_no_parameter_buffer_or_generator() -> None:
    model, lot = Words(), words()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    generator = torch.get_rng_state()
    scorer_of(model).examine(lot, torch.empty(0))
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), generator)


def test_a_model_without_anything_to_quantise_is_scored_in_fp32(caplog: Any) -> None:
    class Tiny(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))

        def forward(self, **x: Tensor) -> Tensor:
            return x["a"] * self.scale

    def losses(model: Any, batch: Any) -> Tensor:
        return model(a=batch).square()

    scorer = scorer_of(Tiny(), "int8", losses)
    assert scorer.precision == "fp32"
    assert "scored in fp32" in caplog.text
    assert scorer.examine(Lot(torch.arange(4.0), 4), torch.empty(0)).scores.tolist() == [0.0, 1.0, 4.0, 9.0]
