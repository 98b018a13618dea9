"""What `sbpipe plan` says against what then runs, of three jobs it was not tuned on.

The plan is made before and after the runs, and the mean of both counts: on a machine that others use too,
speed drifts by more than the plan errs. In one run late batches are waited for, so that idle time shows, in
another one they are filled, so that fills do. Idle time and fills are shares: their difference in points may
be 20 % of what ran, and 5 points where that is little: 1 % idle against 15 % is a miss, against 4 % not.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from sbpipe.bench.rows import Row
from sbpipe.config import known_keys, parse_assignment, resolve
from sbpipe.machine.planner import Costs, Forecast
from sbpipe.process.forecasting import forecasts
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
    "selection.keep": "0.3333",
    "sync.interval": "1",
    "sync.depth": "2",
    "selector.precision": "fp32",
    "selector.batch_size": "0",
    "eval.every": "0",
    "checkpoint.every": "0",
}
WITHIN = 0.2
"""How far a plan may be off."""
SMALL = 0.25
"""The least share that a difference is taken relative to: 20 % of it are 5 points."""
LONGEST_S = 30.0
"""What a plan may take."""
FILLING = ("selection.late=fill", "train.steps=0", "train.seconds=25")
"""Long enough that most of it is not the time before the first answer."""


class Planned(NamedTuple):
    """What one plan says, and what it took."""

    waiting: Forecast
    filling: Forecast
    took_s: float


def measure() -> list[Row]:
    """How far plans and runs are apart, and the numbers themselves."""
    return [row for name, settings in JOBS.items() for row in _rows(name, settings)]


def _rows(name: str, settings: tuple[str, ...]) -> list[Row]:
    fixed = [f"{key}={value}" for key, value in _FIXED.items() if key in known_keys()]
    waiting = (*fixed, *settings, "selection.late=wait")
    filling = (*fixed, *settings, *FILLING)
    before = _plan(waiting, filling)
    waited, filled = _run(waiting), _run(filling)
    plans = [before, _plan(waiting, filling)]

    def planned(of: str, late: str) -> float:
        return statistics.fmean(getattr(getattr(plan, late), of) for plan in plans)

    return [
        *period_rows(name, planned("period_ms", "waiting"), period_ms(waited)),
        *share_rows(name, "idle", planned("idle", "waiting"), waited["trainer.idle_ratio"]),
        *share_rows(name, "filled", planned("fills", "filling"), _late_share(filled)),
        Row("plan", f"{name}: plan takes", max(plan.took_s for plan in plans), "s", at_most=LONGEST_S),
    ]


def period_rows(name: str, planned_ms: float, ran_ms: float) -> list[Row]:
    """Two periods, and the factor between them."""
    apart = max(planned_ms, ran_ms) / min(planned_ms, ran_ms)
    return [
        Row("plan", f"{name}: period planned", planned_ms, "ms"),
        Row("plan", f"{name}: period that ran", ran_ms, "ms"),
        Row("plan", f"{name}: period, planned against run", apart, "×", at_most=1.0 + WITHIN),
    ]


def share_rows(name: str, what: str, planned: float, ran: float) -> list[Row]:
    """Two shares, and their difference relative to what ran, or to `SMALL` where that is less."""
    apart = abs(planned - ran) / max(ran, SMALL)
    return [
        Row("plan", f"{name}: {what} planned", planned, ""),
        Row("plan", f"{name}: {what} that ran", ran, ""),
        Row("plan", f"{name}: {what}, apart, of what ran or of 1/4", apart, "", at_most=WITHIN),
    ]


def period_ms(run: dict[str, Any]) -> float:
    """From step to step: the one evaluation, at the end, comes after the time of training is taken."""
    return float(1e3 * run["train_s"] / run["steps"])


def _late_share(run: dict[str, Any]) -> float:
    """The share that was filled once a selector was ready: a plan knows nothing of its start."""
    return float(run["fill.late"] / max(1, run["trained"] - run["fill.starting"]))


def _plan(waiting: tuple[str, ...], filling: tuple[str, ...]) -> Planned:
    """Measured for a run that waits; from the same costs, the forecast of one that fills."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "sbpipe", "plan", "--json", *_flags(waiting)]
    told = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    took_s = time.perf_counter() - began
    costs = Costs(**next(row["costs"] for row in told["rows"] if row["precision"] == "fp32"))
    waited, filled = (
        forecasts(costs, resolve(dict(map(parse_assignment, settings))))[0] for settings in (waiting, filling)
    )
    return Planned(waited, filled, took_s)


def _flags(settings: tuple[str, ...]) -> list[str]:
    return [part for setting in settings for part in ("--set", setting)]


def _run(settings: tuple[str, ...]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        command = [sys.executable, "-m", "sbpipe", "run", "--no-report", "--run-dir", str(path)]
        subprocess.run(
            [*command, *_flags(settings)],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        return dict(json.loads((path / SUMMARY).read_text()))
