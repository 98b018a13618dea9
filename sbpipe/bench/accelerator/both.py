"""The second device beside the first: how fast it trains and scores, by which `sbpipe plan` judges."""

from collections.abc import Sequence
from functools import partial

import torch

from sbpipe.bench.accelerator.check import Fact, Size
from sbpipe.bench.accelerator.stage import pair, seconds, set_stage
from sbpipe.machine import devices


def measure(size: Size) -> Sequence[Fact]:
    """Train step and scoring pass of each."""
    found: list[tuple[float, float]] = []
    facts: list[Fact] = []
    for device in pair():
        devices.use(device)
        step_s, pass_s = _of(size, device)
        found.append((step_s, pass_s))
        facts += [
            Fact(f"{device} train step", 1e3 * step_s, "ms"),
            Fact(f"{device} scoring pass in fp32", 1e3 * pass_s, "ms"),
        ]
    (step_s, pass_s), (other_step_s, other_pass_s) = found
    return [
        *facts,
        Fact("the second trains", step_s / other_step_s, "times as fast as the first"),
        Fact("the second scores", pass_s / other_pass_s, "times as fast as the first"),
        Fact("candidates the second scores in a step of the first", size.batch_size * step_s / other_pass_s),
    ]


def _of(size: Size, device: torch.device) -> tuple[float, float]:
    stage = set_stage(size, device)
    scorer = stage.scorer()
    inputs, targets = stage.batch(0)
    step_s = seconds(lambda: stage.setup.train_step(0, 0.5, inputs, targets), device, size.rounds)
    return step_s, seconds(partial(scorer.score, stage.inputs, stage.targets), device, size.rounds)
