"""Runs and studies written by hand: a few lines of events, a summary, a plan. No process is started."""

import csv
import json
from pathlib import Path
from typing import Any

BEGIN = 1_000.0
SPENT = {
    "trainer.forward_s": 2.0,
    "trainer.backward_s": 4.0,
    "trainer.optimizer_s": 0.5,
    "trainer.wait_s": 1.5,
    "trainer.evaluate_s": 1.0,
}


def write_run(
    path: Path,
    errors: list[float],
    *,
    seed: int = 0,
    pace_s: float = 1.0,
    status: str | None = "finished",
    **config: Any,
) -> Path:
    """A run that starts up for two seconds, then is measured every `pace_s` seconds, each time for half a
    second.
    """
    path.mkdir(parents=True)
    sections: dict[str, Any] = {
        "seed": seed,
        "mode": "pipelined",
        "train": {"batch_size": 10},
        "selection": {"policy": "sb"},
    }
    for key, value in config.items():
        section, _, name = key.rpartition("__")
        (sections.setdefault(section, {}) if section else sections)[name] = value
    (path / "config.json").write_text(json.dumps(sections))
    events = [{"kind": "start", "t": BEGIN, "clock": 0.0}]
    for k, error in enumerate(errors, start=1):
        elapsed_s = k * (pace_s + 0.5)
        stamp = {
            "kind": "eval",
            "t": BEGIN + 2.0 + elapsed_s,
            "clock": 0.0,
            "elapsed_s": elapsed_s,
            "evaluate_s": 0.5 * k,
        }
        events.append({**stamp, "error": error, "step": k, "trained": 10 * k, "candidates": 30 * k})
    (path / "events-trainer.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    if status is not None:
        (path / "summary.json").write_text(
            json.dumps(summary_of(errors, status=status, seed=seed, mode=sections["mode"]))
        )
    return path


def summary_of(errors: list[float], **more: Any) -> dict[str, Any]:
    devices = 1 if more.get("mode") == "inline" else 2
    numbers = {
        "eval.error": errors[-1] if errors else None,
        "wall_s": 12.0,
        "startup_s": 2.0,
        "selector.busy_s": 5.0,
        "devices": devices,
    }
    measured = {
        "candidates": 1000,
        "trainer.idle_ratio": 0.1,
        "staleness.mean": 2.0,
        "fidelity.spearman": 0.8,
        "sync.bytes_per_s": 1e6,
    }
    return {**numbers, **measured, **SPENT, **more}


def write_study(path: Path, kind: str, cells: dict[str, dict[str, Any]], **plan: Any) -> Path:
    """A study by hand; a cell without `errors` has not begun, one with `status` failed says why."""
    rows, planned = [], []
    for name, cell in cells.items():
        planned.append(
            {
                "cell": name,
                "arm": cell["arm"],
                "seed": cell["seed"],
                "swept": cell.get("swept", {}),
                "settings": {},
            }
        )
        if "errors" not in cell:
            continue
        status = cell.get("status", "finished")
        is_good = status == "finished"
        write_run(
            path / "cells" / name,
            cell["errors"],
            seed=cell["seed"],
            pace_s=cell.get("pace_s", 1.0),
            status=status if is_good else None,
        )
        outcome = {
            "status": status,
            "started": BEGIN - 1.0,
            "error": None if is_good else "the model exploded",
        }
        (path / "cells" / f"{name}.json").write_text(json.dumps(outcome))
        numbers = summary_of(cell["errors"], **cell.get("numbers", {})) if is_good else {}
        rows.append(
            {
                "cell": name,
                "arm": cell["arm"],
                "seed": cell["seed"],
                **cell.get("swept", {}),
                **numbers,
                "status": status,
            }
        )
    path.mkdir(parents=True, exist_ok=True)
    (path / "plan.json").write_text(
        json.dumps({"kind": kind, "name": "by hand", "swept": [], "baseline": None, **plan, "cells": planned})
    )
    (path / "results.json").write_text(json.dumps({"kind": kind, "rows": rows, "analysis": {}}))
    columns = list(dict.fromkeys(name for row in rows for name in row))
    with (path / "results.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)
    return path


def comparison(path: Path) -> Path:
    cells = {
        "full-0": {"arm": "full", "seed": 0, "errors": [0.8, 0.4, 0.10], "pace_s": 4.0},
        "full-1": {"arm": "full", "seed": 1, "errors": [0.8, 0.5, 0.12], "pace_s": 4.0},
        "fast-0": {"arm": "fast", "seed": 0, "errors": [0.7, 0.2, 0.11], "pace_s": 1.0},
        "fast-1": {"arm": "fast", "seed": 1, "errors": [0.7, 0.3, 0.20], "pace_s": 1.0},
        "bad-0": {"arm": "bad", "seed": 0, "errors": [0.9, 0.9], "status": "failed"},
        "bad-1": {"arm": "bad", "seed": 1},
    }
    return write_study(path, "comparison", cells, baseline="full", targets=[1.1, 1.4])


def sync_sweep(path: Path) -> Path:
    cells = {
        f"{mode}-{interval}-{seed}": {
            "arm": mode,
            "seed": seed,
            "swept": {"sync.interval": interval},
            "errors": [0.5, 0.1 + 0.01 * interval + 0.02 * seed],
            "numbers": {"staleness.mean": interval / 2 + seed, "trainer.idle_ratio": 0.3 / interval},
        }
        for mode in ("pipelined", "fixed-lag")
        for interval in (1, 2, 4, 8)
        for seed in (0, 1)
    }
    return write_study(path, "sweep", cells, swept=["sync.interval"])
