"""How fast each precision scores, and whether its scores rank like those in fp32."""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial

import torch
from torch import Tensor, nn

from sbpipe.bench.accelerator.check import Fact, NotHere, Size, attempt
from sbpipe.bench.accelerator.stage import Stage, first, has_tf32, seconds, set_stage
from sbpipe.config import LossConfig
from sbpipe.errors import DeviceError
from sbpipe.machine.numerics import full_float32, rounded_float32
from sbpipe.models.losses import build_loss
from sbpipe.records import Floats
from sbpipe.scoring import Scorer
from sbpipe.selection.fidelity import spearman

Score = Callable[[Tensor, Tensor], Floats]
_WIDTH = 1024


def measure(size: Size) -> Sequence[Fact]:
    """Of a model with convolutions in every precision, then of one that is all linear layers."""
    stage = set_stage(size, first())
    with full_float32(stage.device):
        facts = list(_of_convolutions(stage, size))
    return [*facts, *attempt("linear layers", lambda: _of_linear_layers(stage, size))]


def _of_convolutions(stage: Stage, size: Size) -> Iterator[Fact]:
    exact = stage.scorer()
    wanted, base_s = exact.score(stage.inputs, stage.targets), _pass_s(stage, exact.score, size)
    yield Fact(f"{size.model}, fp32", len(stage.inputs) / base_s, "examples/s")
    for name in ("tf32", "bf16", "fp16", "int8"):
        yield from attempt(f"{size.model}, {name}", partial(_beside, stage, size, name, wanted, base_s))


def _beside(stage: Stage, size: Size, name: str, wanted: Floats, base_s: float) -> list[Fact]:
    if name == "tf32" and not has_tf32(stage.device):
        raise NotHere(f"{stage.device} has no TF32")
    with rounded_float32(stage.device) if name == "tf32" else nullcontext():
        scorer = _scorer(stage, "fp32" if name == "tf32" else name)
        if scorer.precision not in (name, "fp32"):
            raise NotHere(f"it is scored in {scorer.precision} instead")
        took_s = _pass_s(stage, scorer.score, size)
        scores = scorer.score(stage.inputs, stage.targets)
    return compared(f"{size.model}, {name}", len(wanted), took_s, base_s, scores, wanted)


def _scorer(stage: Stage, precision: str) -> Scorer:
    try:
        return stage.scorer(precision)
    except DeviceError as error:  # a precision that the device has not, or not for this model
        raise NotHere(str(error)) from None


def _of_linear_layers(stage: Stage, size: Size) -> Iterator[Fact]:
    """Integers are for such models alone here."""
    torch.manual_seed(0)
    width = 64 if size.is_quick else _WIDTH
    inputs = torch.randn(8 * size.batch_size, width).to(stage.device)
    targets = torch.arange(len(inputs)).remainder(10).to(stage.device)
    layers = [layer for _ in range(4) for layer in (nn.Linear(width, width), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(width, 10))
    wanted, base_s = None, 0.0
    for name in ("fp32", "bf16", "fp16", "int8"):
        scorer = Scorer(
            copy.deepcopy(model),
            build_loss(LossConfig()),
            precision=name,
            device=stage.device,
            statistics="stored",
        )
        scorer.prepare(inputs, targets)
        scores = scorer.score(inputs, targets)
        took_s = seconds(partial(scorer.score, inputs, targets), stage.device, size.rounds)
        wanted, base_s = (scores, took_s) if wanted is None else (wanted, base_s)
        yield from compared(f"linear layers, {name}", len(scores), took_s, base_s, scores, wanted)


def compared(
    what: str, count: int, took_s: float, base_s: float, scores: Floats, wanted: Floats
) -> list[Fact]:
    """Speed and ranks of a way to score, beside fp32."""
    return [
        Fact(what, count / took_s, "examples/s"),
        Fact(f"{what} to fp32", base_s / took_s, "times as fast"),
        Fact(f"{what} ranks like fp32", spearman(scores, wanted)),
    ]


def _pass_s(stage: Stage, score: Score, size: Size) -> float:
    return seconds(partial(score, stage.inputs, stage.targets), stage.device, size.rounds)
