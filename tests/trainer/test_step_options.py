"""Clipping, parts of a batch, parameter groups, the average of the weights: each does what it says, alone and
over a resume.
"""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from support.digests import config_of, cut, resumed, trained
from support.runs import small, train_inline
from torch import nn

from sbpipe.config import Config, resolve, warnings_of
from sbpipe.errors import ConfigError
from sbpipe.export import export
from sbpipe.export.load import load
from sbpipe.models.losses import build_loss
from sbpipe.runs.spans import Spans
from sbpipe.trainer import checkpoint_file
from sbpipe.trainer.optimizer import build_optimizer
from sbpipe.trainer.setup import prepare
from sbpipe.trainer.step import TrainStep

PLAIN = {"optim.momentum": 0.0, "optim.weight_decay": 0.0, "optim.lr": 1.0, "schedule.name": "constant"}


class Net(nn.Module):
    """Two layers that remember how large their batches were."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 5), nn.Linear(5, 3)
        self.batches: list[int] = []

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.batches.append(len(inputs))
        outputs: torch.Tensor = self.head(self.body(inputs).relu())
        return outputs


def net() -> Net:
    torch.manual_seed(0)
    return Net()


def step_of(model: nn.Module, **given: Any) -> TrainStep:
    config = resolve(PLAIN | {key.replace("__", "."): value for key, value in given.items()})
    return TrainStep(config, model, build_loss(config.loss), build_optimizer(config.optim, model), Spans())


def batch(number: int = 10) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(number, 6, generator=generator), torch.arange(number) % 3


def change(before: nn.Module, after: nn.Module) -> float:
    pairs = zip(before.parameters(), after.parameters(), strict=True)
    return float(torch.cat([(one - other).detach().flatten() for one, other in pairs]).norm())


# --- optim.clip -----------------------------------------------------------------------------------


def test_a_long_gradient_is_scaled_down_to_the_clip_and_a_short_one_left() -> None:
    plain, clipped, loose = net(), net(), net()
    for model, clip in ((plain, 0.0), (clipped, 1e-3), (loose, 1e3)):
        step_of(model, optim__clip=clip)(0, 0.5, *batch())
    assert change(net(), clipped) == pytest.approx(1e-3, rel=1e-3)
    assert change(net(), plain) > 1e-2
    assert change(plain, loose) == 0.0


# --- train.accumulate -----------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [2, 3, 10])
def test_parts_of_a_batch_have_the_gradient_of_the_whole_and_less_of_it_in_memory(parts: int) -> None:
    whole, cut_up = net(), net()
    losses = step_of(whole)(0, 0.5, *batch())
    step = step_of(cut_up, train__accumulate=parts)
    cut_up.batches.clear()
    assert torch.allclose(step(0, 0.5, *batch()), losses, atol=1e-6)
    assert change(whole, cut_up) < 1e-6 < change(net(), whole)
    assert (max(cut_up.batches), sum(cut_up.batches)) == (-(-10 // parts), 10)


def test_parts_are_one_span_of_each_stage() -> None:
    step = step_of(net(), train__accumulate=5)
    step(0, 0.5, *batch())
    assert {name: step._spans.count[name] for name in ("forward", "backward", "optimizer")} == {
        "forward": 1,
        "backward": 1,
        "optimizer": 1,
    }


def test_the_rehearsal_tries_a_part_and_not_the_whole() -> None:
    model = net()
    step_of(model, train__accumulate=5).rehearse(*batch())
    assert model.batches == [2]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"train.batch_size": 4}, r"train\.batch_size is 4"),
        ({"mode": "data-parallel", "selection.policy": "full"}, "the ranks cut the batch"),
        ({"selection.policy": "steady"}, r"selection\.reweight = false"),
        ({"selection.policy": "sb", "selection.unbiased": 4.0}, r"selection\.unbiased = 0"),
    ],
)
def test_what_must_see_the_whole_batch_refuses_parts(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=rf"train\.accumulate = 8: .*{message}"):
        resolve({"train.accumulate": 8} | given)


# --- parameter groups -----------------------------------------------------------------------------


def test_norms_and_biases_are_not_decayed_where_that_is_asked() -> None:
    model = net()
    optimizer = build_optimizer(resolve({"optim.no_decay": True}).optim, model)
    decays = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert decays[id(model.body.weight)] == 5e-4
    assert decays[id(model.body.bias)] == decays[id(model.head.bias)] == 0.0


def test_rates_follow_the_schedule_times_the_factor_of_their_prefix() -> None:
    model = net()
    step = step_of(model, optim__lr_scale={"body": 0.5, "body.bias": 0.0})
    before = net()
    step(0, 0.5, *batch())
    plain = net()
    step_of(plain)(0, 0.5, *batch())
    assert torch.equal(model.body.bias, before.body.bias)
    assert torch.equal(model.head.weight, plain.head.weight)
    moved, whole = model.body.weight - before.body.weight, plain.body.weight - before.body.weight
    assert torch.allclose(moved, 0.5 * whole, atol=1e-7)


@pytest.mark.parametrize(
    ("scales", "message"),
    [
        ({"tail": 0.1}, r"optim\.lr_scale\.tail = 0\.1: no parameter's name begins so\. .*body, head"),
        ({"body": -1.0}, "is no factor"),
        ({"body": "slow"}, "is no factor"),
    ],
)
def test_a_factor_that_fits_nothing_is_refused(scales: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_optimizer(resolve({"optim.lr_scale": scales}).optim, net())


# --- train.ema ------------------------------------------------------------------------------------


def test_the_average_follows_the_weights_by_its_decay_and_quickly_at_first() -> None:
    model, expected = net(), net().body.weight.detach().clone()
    step = step_of(model, train__ema=0.15)
    for number in range(3):
        step(number, 0.5, *batch())
        decay = min(0.15, (2 + number) / (11 + number))
        expected = decay * expected + (1 - decay) * model.body.weight.detach()
    assert step.ema is not None
    assert torch.allclose(step.ema.model.get_parameter("body.weight"), expected, atol=1e-6)


def test_the_average_is_what_is_evaluated_exported_and_on_request_published(run_path: Path) -> None:
    config = small(mode="inline", train__ema=0.9)
    train_inline(config, run_path)
    state = checkpoint_file.read(run_path / "checkpoints" / "step-12.pt")
    assert not torch.equal(state["ema"]["head.weight"], state["model"]["head.weight"])
    model, _ = load(export(run_path).folder)
    assert torch.equal(model.state_dict()["head.weight"], state["ema"]["head.weight"])
    setup = prepare(config)
    assert setup.train_step.judged is setup.train_step.ema.model  # type: ignore[union-attr]
    assert setup.job().model is setup.train_step.model
    publishing = prepare(small(mode="inline", train__ema=0.9, train__ema_publish=True))
    assert publishing.job().model is publishing.train_step.judged
    assert any("ema_publish" in note for note in warnings_of(resolve({"train.ema_publish": True})))


# --- all of them, over a resume -------------------------------------------------------------------

ALL = {
    "selection.policy": "sb",
    "optim.clip": 0.5,
    "optim.no_decay": True,
    "optim.lr_scale": {"features": 0.5},
    "train.accumulate": 3,
    "train.ema": 0.9,
    "train.ema_publish": True,
}


@pytest.mark.parametrize("mode", ["inline", "fixed-lag"])
def test_a_resumed_run_ends_with_the_weights_of_a_whole_one_with_all_of_them(
    mode: str, tmp_path: Path
) -> None:
    config: Config = config_of(mode, cut(ALL), tmp_path)
    whole = trained(config, tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "again")
    again = resumed(config, tmp_path / "again")
    assert again["weights.digest"] == whole["weights.digest"]
    one, other = (
        checkpoint_file.read(tmp_path / name / "checkpoints" / "step-12.pt")["ema"]
        for name in ("whole", "again")
    )
    assert all(torch.equal(one[name], other[name]) for name in one)
