"""The pipeline as a user runs it: two processes, one core each, default settings, a model of 50 ms a step.

Three runs of a small residual net, one after the other on the same cores: pipelined, where keep and precision
are `auto` and a batch that is late is filled; the same with the whole weights synced every 8 steps; and in
lockstep, where nothing overlaps, at the keep rate and in the precision that the first one came to.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from sbpipe.bench.rows import Row
from sbpipe.runs.directory import SUMMARY

MODEL = ("model.name=small_resnet", "model.options={depth = 8}")
LARGEST_STALENESS = 2 + 1 + 1
"""depth + interval + 1, with the defaults."""


def measure() -> list[Row]:
    """Busy ratio, staleness, overhead and the gain of overlapping."""
    run = _run("train.steps=300", *MODEL)
    late = _run("train.steps=150", "sync.interval=8", *MODEL)
    same = (f"selection.keep={run['keep.last']}", f"selector.precision={run['scoring.precision']}")
    lockstep = _run("train.steps=100", "mode=lockstep", *same, *MODEL)
    steering_ms = late["trainer.steer_ms"] + late["sync.fast_publish_ms"]
    beside = ("view", "dispatch", "log", "after")
    beside_ms = sum(run[f"trainer.{name}_ms"] for name in beside)
    gain = (lockstep["train_s"] / lockstep["steps"]) / (run["train_s"] / run["steps"])
    return [
        Row("pipeline", "step of the small residual net", run["trainer.step_ms"], "ms", at_least=50),
        Row("pipeline", "trainer busy", run["trainer.busy_ratio"], "", at_least=0.95),
        Row("pipeline", "trainer idle", run["trainer.idle_ratio"], "", at_most=0.02),
        Row("pipeline", "filled once the selector was ready", _late_share(run), ""),
        Row("pipeline", "keep rate that auto came to", run["keep.last"], ""),
        Row("pipeline", "selector busy", run["selector.busy_ratio"], ""),
        Row("pipeline", "staleness, mean", run["staleness.mean"], "steps", at_most=1.5),
        Row(
            "pipeline",
            "staleness, largest (depth 2, interval 1)",
            run["staleness.max"],
            "steps",
            at_most=LARGEST_STALENESS,
        ),
        Row(
            "pipeline",
            "receive, assemble, view, log, of a step",
            beside_ms / run["trainer.step_ms"],
            "",
            at_most=0.02,
        ),
        Row(
            "pipeline",
            "weigh, steer, publish the fast part, of a step",
            steering_ms / late["trainer.step_ms"],
            "",
            at_most=0.01,
        ),
        Row("pipeline", "publish, of a step", run["sync.snapshot_ms"] / run["trainer.step_ms"], ""),
        Row("pipeline", "time per step, lockstep against pipelined", gain, "×"),
    ]


def _late_share(run: dict[str, Any]) -> float:
    return float(run["fill.late"] / max(1, run["trained"] - run["fill.starting"]))


def _run(*settings: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        given = [
            part
            for setting in ("eval.every=0", "checkpoint.every=0", *settings)
            for part in ("--set", setting)
        ]
        command = [sys.executable, "-m", "sbpipe", "run", "--no-report", "--run-dir", str(path), *given]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return dict(json.loads((path / SUMMARY).read_text()))
