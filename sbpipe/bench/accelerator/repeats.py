"""Whether a run under a logical clock repeats: the same bits in its last weights."""

import hashlib
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from sbpipe.bench.accelerator.check import Fact, Size
from sbpipe.bench.accelerator.stage import first, settings
from sbpipe.process import roles
from sbpipe.runs.names.files import CHECKPOINTS
from sbpipe.trainer.checkpoint import Checkpoints

_STEPS = 12


def measure(size: Size) -> Sequence[Fact]:
    """Two runs of a few steps in one process each way, compared."""
    device = first()
    weights = [_weights_after_a_run(size, device) for _ in range(2)]
    digests = [_digest(found) for found in weights]
    apart = max(
        float((one - other).abs().max())
        for one, other in zip(*(_numbers(found) for found in weights), strict=True)
    )
    return [
        Fact("steps", float(_STEPS)),
        Fact("the same bits twice", digests[0] == digests[1]),
        Fact("digest of the first", digests[0]),
        Fact("digest of the second", digests[1]),
        Fact("largest difference of a weight", apart),
    ]


def _weights_after_a_run(size: Size, device: torch.device) -> dict[str, torch.Tensor]:
    config = settings(size, device, mode="inline", train__steps=_STEPS)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        roles.run_inline(config, path, resume=False, overwrite=False, on_open=lambda run_dir: None)
        state: Any = Checkpoints(path / CHECKPOINTS).load_newest()
    return dict(state["model"])


def _numbers(weights: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    return [weights[name].double() for name in sorted(weights) if weights[name].is_floating_point()]


def _digest(weights: dict[str, torch.Tensor]) -> str:
    whole = hashlib.sha256()
    for name in sorted(weights):
        whole.update(name.encode())
        whole.update(weights[name].contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return whole.hexdigest()[:16]
