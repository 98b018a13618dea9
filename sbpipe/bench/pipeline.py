"""The pipeline itself, as a user runs it: two processes, one core each, keep 1/3, sync every step, a model whose step takes 50 ms or more.

Three runs, one after the other on the same cores. MobileNetV2 at half of its width has a selector that keeps up: scoring three
candidates costs about half of training on one. The small residual net has one that barely does (four fifths), and there the swings of
the keep rate show as idle time. The same net in lockstep, where nothing overlaps, tells what the overlap is worth.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from sbpipe.bench.rows import Row
from sbpipe.run_dir import SUMMARY

MOBILENET = ("model.name=mobilenet_v2_cifar", "model.options={width_mult = 0.5}")
RESNET = ("model.name=small_resnet", "model.options={depth = 8}")
LARGEST_STALENESS = 2 + 1 + 1
"""depth + interval + 1, with the defaults."""


def measure() -> list[Row]:
    """Busy ratio, staleness, overhead and the gain of overlapping."""
    easy = _run("train.steps=40", *MOBILENET)
    tight = _run("train.steps=120", *RESNET)
    lockstep = _run("train.steps=60", "mode=lockstep", *RESNET)
    beside_ms = easy["trainer.view_ms"] + easy["trainer.dispatch_ms"] + easy["trainer.log_ms"]
    gain = (lockstep["train_s"] / lockstep["steps"]) / (tight["train_s"] / tight["steps"])
    return [
        Row("pipeline", "MobileNetV2: step", easy["trainer.step_ms"], "ms", at_least=50),
        Row("pipeline", "MobileNetV2: trainer busy", easy["trainer.busy_ratio"], "", at_least=0.95),
        Row("pipeline", "MobileNetV2: trainer idle", easy["trainer.idle_ratio"], ""),
        Row("pipeline", "MobileNetV2: selector busy", easy["selector.busy_ratio"], ""),
        Row("pipeline", "MobileNetV2: staleness, mean", easy["staleness.mean"], "steps"),
        Row("pipeline", "MobileNetV2: staleness, largest", easy["staleness.max"], "steps", at_most=LARGEST_STALENESS),
        Row(
            "pipeline",
            "MobileNetV2: receive, assemble, view, log, of a step",
            beside_ms / easy["trainer.step_ms"],
            "",
            at_most=0.02,
        ),
        Row("pipeline", "small residual net: trainer busy", tight["trainer.busy_ratio"], ""),
        Row("pipeline", "small residual net: selector busy", tight["selector.busy_ratio"], ""),
        Row("pipeline", "small residual net: staleness, mean", tight["staleness.mean"], "steps"),
        Row("pipeline", "small residual net: time per step, lockstep against pipelined", gain, "×"),
    ]


def _run(*settings: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        given = [part for setting in ("eval.every=0", "checkpoint.every=0", *settings) for part in ("--set", setting)]
        command = [sys.executable, "-m", "sbpipe", "run", "--run-dir", str(path), *given]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return dict(json.loads((path / SUMMARY).read_text()))
