"""The pipeline itself, as a user runs it: two processes, keep 1/3, sync every step, a model whose step takes 50 ms or more.

Two runs, one after the other on the same cores: the small residual net, whose selector keeps up, pipelined; and the same in lockstep,
where nothing overlaps. What a step costs beside forward, backward and optimizer is read off the same run.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from sbpipe.bench.rows import Row
from sbpipe.run_dir import SUMMARY

_KEEP = "selection.keep=0.3333333"


def measure() -> list[Row]:
    """Busy ratio, staleness, overhead and the gain of overlapping."""
    pipelined = _run("model.name=small_resnet", "train.steps=100")
    lockstep = _run("model.name=small_resnet", "train.steps=30", "mode=lockstep")
    per_step = {name: run["train_s"] / run["steps"] for name, run in (("pipelined", pipelined), ("lockstep", lockstep))}
    beside = pipelined["trainer.view_ms"] + pipelined["trainer.dispatch_ms"] + pipelined["trainer.log_ms"]
    bound = 2 + 1 + 1
    return [
        Row("pipeline", "step of small_resnet", pipelined["trainer.step_ms"], "ms", at_least=50),
        Row("pipeline", "trainer busy", pipelined["trainer.busy_ratio"], "", at_least=0.95),
        Row("pipeline", "trainer idle", pipelined["trainer.idle_ratio"], ""),
        Row("pipeline", "selector busy", pipelined["selector.busy_ratio"], ""),
        Row("pipeline", "staleness, mean", pipelined["staleness.mean"], "steps"),
        Row("pipeline", "staleness, largest (depth 2, interval 1)", pipelined["staleness.max"], "steps", at_most=bound),
        Row("pipeline", "receive, assemble, view, log, of a step", beside / pipelined["trainer.step_ms"], "", at_most=0.02),
        Row("pipeline", "time per step, lockstep against pipelined", per_step["lockstep"] / per_step["pipelined"], "×"),
    ]


def _run(*settings: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        given = [part for setting in (_KEEP, "eval.every=0", "checkpoint.every=0", *settings) for part in ("--set", setting)]
        command = [sys.executable, "-m", "sbpipe", "run", "--run-dir", str(path), *given]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return dict(json.loads((path / SUMMARY).read_text()))
