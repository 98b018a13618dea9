"""What TF32 changes: scores against those without it, and a folded model against the model itself."""

from collections.abc import Sequence

import torch

from sbpipe.bench.accelerator.check import Fact, Size
from sbpipe.bench.accelerator.stage import Stage, first, has_tf32, set_stage
from sbpipe.machine.layout import laid_out, layout_of
from sbpipe.machine.numerics import full_float32, rounded_float32, rounds_float32
from sbpipe.records import Floats
from sbpipe.scoring.programs import FloatProgram
from sbpipe.selection.fidelity import spearman


def measure(size: Size) -> Sequence[Fact]:
    """The difference that folding makes without TF32, and all of it again with."""
    stage = set_stage(size, first())
    with full_float32(stage.device):
        exact = _losses(stage)
        facts = [Fact("folded against plain, without TF32", _folding(stage), "of the outputs' norm")]
    if not has_tf32(stage.device):
        return [*facts, Fact("with TF32", None, note=f"not here: {stage.device} has no TF32")]
    with rounded_float32(stage.device):
        rough = _losses(stage)
        facts.append(Fact("folded against plain, with TF32", _folding(stage), "of the outputs' norm"))
    return [
        *facts,
        Fact("scores with TF32 rank like those without", spearman(rough, exact)),
        Fact("largest difference of a score", float(abs(rough - exact).max())),
        Fact("TF32 is allowed by default", rounds_float32(stage.device)),
    ]


def _losses(stage: Stage) -> Floats:
    return stage.scorer().score(stage.inputs, stage.targets)


@torch.inference_mode()
def _folding(stage: Stage) -> float:
    model = stage.setup.train_step.model.eval()
    inputs = laid_out(stage.inputs, layout_of(model))
    program = FloatProgram(model, "fp32")
    program.refresh()
    plain = model(inputs)
    return float((program(inputs) - plain).norm() / plain.norm())
