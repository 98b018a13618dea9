"""What `sbpipe plan` says against what then runs: period and busy share of three jobs it was not tuned on.

The plan is made before and after each run, and the mean of both counts: on a machine that others use too,
speed drifts by more than the plan errs. Late batches are waited for, so that idle time shows.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from sbpipe.bench.rows import Row
from sbpipe.config import known_keys
from sbpipe.runs.directory import SUMMARY

JOBS: dict[str, tuple[str, ...]] = {
    "small_cnn, batch 128, keep 1/3": ("train.steps=150",),
    "small_resnet, batch 64, keep 1/4": (
        "train.steps=150",
        "model.name=small_resnet",
        "model.options={depth = 8}",
        "train.batch_size=64",
        "selection.keep=0.25",
    ),
    "wide small_resnet, batch 32, keep 1/8": (
        "train.steps=100",
        "model.name=small_resnet",
        "model.options={depth = 8, width = 32}",
        "train.batch_size=32",
        "selection.keep=0.125",
        "view.crop=2",
    ),
}
# Numbers for all that could be left to "auto": what a run chooses on its way is not what is compared here.
_FIXED = {
    "selection.late": "wait",
    "selection.keep": "0.3333",
    "sync.interval": "1",
    "sync.depth": "2",
    "selector.precision": "fp32",
    "selector.batch_size": "0",
    "eval.every": "0",
    "checkpoint.every": "0",
}
WITHIN = 1.2


def measure() -> list[Row]:
    """Predicted over measured, as a factor of at least 1, and the numbers themselves."""
    return [row for name, settings in JOBS.items() for row in _rows(name, settings)]


def _rows(name: str, settings: tuple[str, ...]) -> list[Row]:
    known = known_keys()
    fixed = [f"{key}={value}" for key, value in _FIXED.items() if key in known]
    given = [part for setting in (*fixed, *settings) for part in ("--set", setting)]
    before, run, after = _plan(given), _run(given), _plan(given)
    period_ms = statistics.fmean([before["period_ms"], after["period_ms"]])
    idle = statistics.fmean([before["idle"], after["idle"]])
    ran_ms = 1e3 * (run["train_s"] - run["trainer.evaluate_s"]) / run["steps"]
    ran_idle = run["trainer.idle_ratio"]
    return [
        Row("plan", f"{name}: period planned", period_ms, "ms"),
        Row("plan", f"{name}: period that ran", ran_ms, "ms"),
        Row("plan", f"{name}: period, planned against run", _apart(period_ms, ran_ms), "×", at_most=WITHIN),
        Row("plan", f"{name}: idle planned", idle, ""),
        Row("plan", f"{name}: idle that ran", ran_idle, ""),
        Row(
            "plan",
            f"{name}: busy, planned against run",
            _apart(1 - idle, 1 - ran_idle),
            "×",
            at_most=WITHIN,
        ),
    ]


def _apart(one: float, other: float) -> float:
    """The factor between two numbers, whichever is larger."""
    return max(one, other) / max(min(one, other), 1e-9)


def _plan(given: list[str]) -> dict[str, Any]:
    command = [sys.executable, "-m", "sbpipe", "plan", "--json", *given]
    told = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return dict(next(row["plan"] for row in told["rows"] if row["precision"] == "fp32"))


def _run(given: list[str]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        command = [sys.executable, "-m", "sbpipe", "run", "--no-report", "--run-dir", str(path), *given]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return dict(json.loads((path / SUMMARY).read_text()))
