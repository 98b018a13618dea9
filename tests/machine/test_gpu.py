"""What only an accelerator can show; these run where there is one."""

from pathlib import Path

import numpy as np
import pytest
import torch
from support.nets import candidates, net
from support.runs import sbpipe, settings, small, summary_of, train_inline

from sbpipe.config import LossConfig
from sbpipe.data import load_data
from sbpipe.errors import DeviceError
from sbpipe.models.losses import build_loss
from sbpipe.scoring import Scorer
from sbpipe.scoring.agreement import agreement_of
from sbpipe.scoring.autotune import Tuning

pytestmark = pytest.mark.gpu


def accelerator() -> torch.device:
    found = torch.accelerator.current_accelerator()
    assert found is not None
    return torch.device(found.type, 0)


def test_a_view_is_the_same_on_the_accelerator_bit_for_bit() -> None:
    config, ids = small(view__crop=4, view__flip=True, view__cutout=8), np.arange(100)
    views = [
        load_data(config.data, config.view, seed=1, device=device).train.batch(ids, 3).inputs.cpu()
        for device in (torch.device("cpu"), accelerator())
    ]
    assert torch.equal(*views)


def test_a_run_on_one_accelerator_trains(run_path: Path) -> None:
    summary = train_inline(small(mode="inline", train__device=str(accelerator())), run_path)
    assert summary["steps"] == 12
    assert summary["staleness.max"] == 0


def test_trainer_on_the_accelerator_and_selector_on_the_cpu(run_path: Path) -> None:
    # Not `auto`, which takes a longer interval on a busy machine: the bound is depth + interval - 1.
    devices = {"train__device": str(accelerator()), "selector__device": "cpu"}
    arguments = settings(**devices, train__steps=30, sync__interval=1, sync__depth=2)
    done = sbpipe("run", "--run-dir", str(run_path), *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    assert summary_of(run_path)["staleness.max"] <= 2


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_narrow_selector_on_the_accelerator_agrees_with_fresh_losses(
    precision: str, run_path: Path
) -> None:
    config = small(
        mode="inline", train__device=str(accelerator()), selector__precision=precision, train__steps=60
    )
    assert train_inline(config, run_path)["fidelity.spearman"] > 0.3


def test_auto_measures_on_the_accelerator_and_adopts_what_ranks_like_fp32() -> None:
    inputs, targets = (tensor.to(accelerator()) for tensor in candidates(64))
    scorer = Scorer(net(), build_loss(LossConfig()), precision="fp32", device=accelerator())
    exact = scorer.score(inputs, targets)
    tuning = Tuning(scorer, 64, has_precision=True, has_batch_size=False, least=0.95)
    for _ in range(100):
        tuning.offer(inputs, targets)
        torch.accelerator.synchronize()  # as a lease does, before it is answered
        if tuning.is_due():
            tuning.piece()
    assert agreement_of(scorer.score(inputs, targets), exact) > 0.95


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_narrow_precision_on_the_accelerator_ranks_like_fp32(precision: str, run_path: Path) -> None:
    config = small(
        mode="inline", train__device=str(accelerator()), selector__precision=precision, train__steps=60
    )
    agreement = train_inline(config, run_path)["scoring.agreement"]
    assert agreement is None or agreement > 0.95


def test_int8_on_the_accelerator_is_refused(run_path: Path) -> None:
    with pytest.raises(DeviceError, match="no integer convolutions"):
        train_inline(
            small(mode="inline", train__device=str(accelerator()), selector__precision="int8"), run_path
        )


def test_mixed_precision_with_a_scaler_trains(run_path: Path) -> None:
    config = small(mode="inline", train__device=str(accelerator()), train__amp="fp16")
    assert np.isfinite(train_inline(config, run_path)["eval.loss"])
