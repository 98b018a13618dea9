"""What compiling the scoring pass gains, or recording it as a graph, and that new weights count."""

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import torch

from sbpipe.bench.accelerator.check import Fact, Size, attempt
from sbpipe.bench.accelerator.precisions import compared
from sbpipe.bench.accelerator.stage import Stage, first, seconds, set_stage
from sbpipe.records import Floats
from sbpipe.scoring import Scorer

WAYS: tuple[tuple[str, bool | str], ...] = (
    ("torch.compile", True),
    ("reduce-overhead", "reduce-overhead"),
    ("graph", "graph"),
)
_HALF = "fp16"


def measure(size: Size) -> Sequence[Fact]:
    """Each way, in fp32 and in half precision."""
    stage = set_stage(size, first())
    facts: list[Fact] = []
    for precision in ("fp32", _HALF):
        facts += attempt(precision, partial(_ways, stage, size, precision))
    return facts


def _ways(stage: Stage, size: Size, precision: str) -> Iterator[Fact]:
    plain = stage.scorer(precision)
    wanted = plain.score(stage.inputs, stage.targets)
    base_s = seconds(partial(plain.score, stage.inputs, stage.targets), stage.device, size.rounds)
    yield Fact(f"{precision}, not compiled", len(wanted) / base_s, "examples/s")
    for name, way in WAYS:
        yield from attempt(
            f"{precision}, {name}", partial(_one, stage, size, f"{precision}, {name}", way, wanted, base_s)
        )


def _one(stage: Stage, size: Size, what: str, way: bool | str, wanted: Floats, base_s: float) -> list[Fact]:
    scorer = stage.scorer(what.partition(",")[0], compiled=way)
    scores = scorer.score(stage.inputs, stage.targets)
    took_s = seconds(partial(scorer.score, stage.inputs, stage.targets), stage.device, size.rounds)
    facts = compared(what, len(wanted), took_s, base_s, scores, wanted)
    return [*facts, Fact(f"{what} takes new weights", _takes_weights(stage, scorer, scores))]


def _takes_weights(stage: Stage, scorer: Scorer, before: Floats) -> bool:
    """Whether weights that are written in place change the scores, to what the model itself gives."""
    with torch.no_grad():
        for parameter in scorer.model.parameters():
            parameter.mul_(1.1)
    scorer.weights_arrived()
    after = scorer.score(stage.inputs, stage.targets)
    exact = Scorer(scorer.model, stage.setup.loss, precision="fp32", device=stage.device, statistics="stored")
    wanted = exact.score(stage.inputs, stage.targets)
    is_near = bool(np.abs(after - wanted).max() <= 0.05 * np.abs(wanted).max())
    return is_near and not np.array_equal(after, before)
