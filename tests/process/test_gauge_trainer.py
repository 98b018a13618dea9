"""The step of the short run that a plan measures: a run's own, which can be told to rest."""

import torch
from torch import nn

from sbpipe.config import resolve
from sbpipe.models.losses import build_loss
from sbpipe.process.gauge_trainer import RestingStep
from sbpipe.runs.spans import Spans


def test_a_step_that_rests_trains_nothing_and_goes_on_afterwards() -> None:
    config = resolve({"optim.lr": 1.0})
    model = nn.Linear(4, 3)
    step = RestingStep.alone(config, model, build_loss(config.loss), Spans())
    inputs, targets = torch.randn(6, 4), torch.arange(6) % 3
    losses = step(0, 0.5, inputs, targets)
    trained = model.weight.detach().clone()
    step.rests = True
    assert torch.equal(step(1, 0.5, inputs, targets), losses)
    assert torch.equal(model.weight, trained)
    step.rests = False
    step(2, 0.5, inputs, targets)
    assert not torch.equal(model.weight, trained)
