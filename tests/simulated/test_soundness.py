"""Scores are believed where the weights that gave them were finite, also scores that are read late."""

import numpy as np
import pytest
import torch
from support.own_loops import pair_losses
from torch import nn

import simulated
from sbpipe.config import LossConfig
from sbpipe.models.losses import build_loss
from sbpipe.records import Lot
from sbpipe.scoring import Scorer
from sbpipe.scoring.any_scorer import AnyScorer
from sbpipe.scoring.own_scorer import OwnScorer

SIM = torch.device("sim", 0)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))


def scorers() -> list[tuple[AnyScorer, object, torch.Tensor]]:
    """A scorer of either kind, with candidates."""
    inputs, targets = torch.randn(12, 16).to(SIM), (torch.arange(12) % 4).to(SIM)
    ours = Scorer(net(), build_loss(LossConfig()), precision="fp32", device=SIM)
    theirs = OwnScorer(net(), pair_losses, precision="fp32", device=SIM)
    return [(ours, inputs, targets), (theirs, Lot([inputs, targets], 12), targets)]


@pytest.mark.parametrize("which", [0, 1], ids=["ours", "a user's"])
def test_a_pass_that_is_read_late_says_nothing_of_newer_weights(which: int) -> None:
    scorer, inputs, targets = scorers()[which]
    scorer.refresh(anyway=True)
    coming = scorer.begin(inputs, targets)
    with torch.no_grad():
        # Such a unit is cut off, and all scores are finite.
        next(iter(scorer.model.children())).bias[0] = -torch.inf
    scorer.weights_arrived()
    assert np.isnan(scorer.examine(inputs, targets).scores).all()
    assert np.isfinite(coming.scores()).all(), "the weights that it was scored with were"
    assert np.isnan(scorer.examine(inputs, targets).scores).all(), "those in use are not"
    assert simulated.races() == []


@pytest.mark.parametrize("which", [0, 1], ids=["ours", "a user's"])
def test_a_pass_with_weights_that_are_no_numbers_says_nothing_of_newer_ones(which: int) -> None:
    scorer, inputs, targets = scorers()[which]
    bias = next(iter(scorer.model.children())).bias
    with torch.no_grad():
        bias[0] = -torch.inf
    scorer.weights_arrived()
    coming = scorer.begin(inputs, targets)
    with torch.no_grad():
        bias[0] = 0.0
    scorer.weights_arrived()
    assert np.isfinite(scorer.examine(inputs, targets).scores).all()
    assert np.isnan(coming.scores()).all()
    assert np.isfinite(scorer.examine(inputs, targets).scores).all()
