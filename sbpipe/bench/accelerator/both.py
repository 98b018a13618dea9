"""The second device beside the first: how fast it trains and scores, by which `sbpipe plan` judges, and
whether both rank alike what the same weights score.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch

from sbpipe.bench.accelerator.check import Fact, Size
from sbpipe.bench.accelerator.stage import Stage, pair, seconds, set_stage
from sbpipe.machine import devices
from sbpipe.scoring.agreement import agreement_of


def measure(size: Size) -> Sequence[Fact]:
    """Train step and scoring pass of each; then one's weights on both."""
    found: list[tuple[float, float]] = []
    facts: list[Fact] = []
    stages = []
    for device in pair():
        devices.use(device)
        stages.append(set_stage(size, device))
        step_s, pass_s = _of(size, stages[-1])
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
        *_compared(stages[0], stages[1].device),
    ]


def _of(size: Size, stage: Stage) -> tuple[float, float]:
    scorer, device = stage.scorer(), stage.device
    inputs, targets = stage.batch(0)
    step_s = seconds(lambda: stage.setup.train_step(0, 0.5, inputs, targets), device, size.rounds)
    return step_s, seconds(partial(scorer.score, stage.inputs, stage.targets), device, size.rounds)


def _compared(stage: Stage, other: torch.device) -> list[Fact]:
    """The first device's model and candidates on both: a selector ranks what a trainer learns from."""
    devices.use(stage.device)
    here = stage.scorer().score(stage.inputs, stage.targets)
    devices.use(other)
    there = stage.scorer(device=other).score(stage.inputs.to(other), stage.targets.to(other))
    largest = float(np.abs(here - there).max()) / max(1e-12, float(np.abs(here).max()))
    return [
        Fact("ranks of the second's scores are those of the first's", agreement_of(there, here)),
        Fact("largest difference of a score, relative to the largest score", largest),
    ]
