"""Precisions on an accelerator: integers where it has them, half precision in channels-last, and `auto`."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support.nets import candidates, net, unsettled
from torch import nn

import simulated
from sbpipe.config import LossConfig
from sbpipe.errors import DeviceError
from sbpipe.models.losses import build_loss
from sbpipe.scoring import Scorer
from sbpipe.scoring.autotune import Tuning
from sbpipe.scoring.programs import FloatProgram
from sbpipe.selection.fidelity import spearman

SIM = "sim:0"


def linear_net() -> nn.Module:
    torch.manual_seed(0)
    layers = [layer for _ in range(2) for layer in (nn.Linear(192, 192), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), *layers, nn.Linear(192, 10))


def scorer_of(model: nn.Module, precision: str = "fp32", **options: float) -> Scorer:
    return Scorer(model, build_loss(LossConfig()), precision=precision, device=torch.device(SIM), **options)  # type: ignore[arg-type]


def there(count: int = 64, side: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    inputs, targets = candidates(count, side)
    return inputs.to(SIM), targets.to(SIM)


@pytest.mark.parametrize("precision", ["bf16", "fp16", "int8"])
def test_a_linear_model_scores_in_every_precision_and_takes_new_weights(precision: str) -> None:
    model, batch = linear_net(), there()
    exact, coarse = scorer_of(model), scorer_of(model, precision)
    coarse.prepare(*batch)
    assert coarse.precision == precision
    for _ in range(2):
        scores, wanted = coarse.score(*batch), exact.score(*batch)
        assert spearman(scores, wanted) > 0.95
        assert not np.array_equal(scores, wanted)
        with torch.no_grad():
            exact.model[1].weight.mul_(-1.0)
        exact.weights_arrived()
        coarse.weights_arrived()
    assert simulated.races() == []


def test_int8_of_a_convolutional_model_is_refused_with_the_reason() -> None:
    with pytest.raises(
        DeviceError,
        match=r"selector.precision = 'int8': PyTorch has no integer convolutions for sim, and they hold "
        r"most of its weights. Write fp16, or auto",
    ):
        scorer_of(net(), "int8")


@pytest.mark.parametrize("model", [net, linear_net])
def test_auto_measures_what_there_is_and_adopts_what_ranks_like_fp32(
    model: type[nn.Module], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    scorer, batch = scorer_of(unsettled(model())), there(64, 32 if model is net else 8)
    exact = scorer.score(*batch)
    tuning = Tuning(scorer, 64, has_precision=True, has_batch_size=False, least=0.95)
    for _ in range(60):
        tuning.offer(*batch)
        torch.accelerator.synchronize(0)  # as a lease does, before it is answered
        if tuning.is_due():
            tuning.piece()
    assert "selector.precision = 'auto': scoring in" in caplog.text
    refused = (
        "selector.precision = 'auto': not int8: selector.precision = 'int8': PyTorch has no integer conv"
    )
    assert (refused in caplog.text) == (model is net)
    assert ("int8 " in caplog.text) != (refused in caplog.text)
    assert spearman(scorer.score(*batch), exact) > 0.95
    assert simulated.races() == []


def test_measuring_reads_late_and_waits_only_to_learn_whether_a_precision_can_be_had(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def waits() -> int:
        return sum(wait.count for wait in simulated.waits())

    tries, of_tries = (Scorer.trial, Scorer.prepare), list[int]()

    def counted(one: Callable[..., Any]) -> Callable[..., Any]:
        def trying(*given: Any) -> Any:
            before = waits()
            try:
                return one(*given)
            finally:
                of_tries.append(waits() - before)

        return trying

    scorer, batch = scorer_of(unsettled(net())), there(64, 32)
    tuning = Tuning(scorer, 64, has_precision=True, has_batch_size=True, least=0.95)
    for name, one in zip(("trial", "prepare"), tries, strict=True):
        monkeypatch.setattr(Scorer, name, counted(one))
    found = []
    for _ in range(200):
        tuning.offer(*batch)
        torch.accelerator.synchronize(0)  # as a lease does, before it is answered
        before = waits(), sum(of_tries)
        if tuning.is_due():
            tuning.piece()
        found.append(waits() - before[0] - (sum(of_tries) - before[1]))
    assert len(of_tries) > 4, "bf16, fp16 and int8 were tried"
    assert set(found) == {0}


def test_half_precision_lies_in_channels_last_also_where_nothing_is_folded() -> None:
    class Odd(nn.Module):
        """Its forward pass cannot be traced, so nothing is folded."""

        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(8, 16, 3)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return self.conv(images) if images.sum() > 0 else self.conv(-images)

    model = Odd().to(SIM).eval().requires_grad_(False)
    program = FloatProgram(model, "fp16")
    program.refresh()
    images = torch.ones(2, 8, 6, 6, device=SIM)
    (weight,) = [tensor for tensor, _ in program._copies if tensor.ndim == 4]
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert torch.allclose(program(images.half()).float().cpu(), model(images).cpu(), atol=0.05)
    with torch.no_grad():
        model.conv.weight.mul_(2.0)
    program.refresh()
    assert torch.allclose(program(images.half()).float().cpu(), model(images).cpu(), atol=0.05)
