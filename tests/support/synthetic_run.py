"""Run directories written by hand: as many events as a test asks for, without training anything."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

STEP_S = 0.05
BEGAN = 1_000.0
WALL_MINUS_CLOCK = 1.7e9
CLASSES = 4
Event = dict[str, Any]


def write_run(path: Path, *, steps: int = 60, selectors: int = 1, leave_out: tuple[str, ...] = ()) -> Path:
    """A run with `steps` steps and a lease for each; `leave_out` names fields, events and files."""
    path.mkdir(parents=True)
    _write_lines(path / "events-trainer.jsonl", _trainer(steps), leave_out)
    for k in range(selectors):
        _write_lines(
            path / f"events-selector-host-1-{k:04x}.jsonl", _selector(steps, k, selectors), leave_out
        )
    _write_json(path / "config.json", _config())
    environment = {
        "versions": {"python": "3.11", "sbpipe": "0.1.0"},
        "host": "host",
        "cores": 2,
        "started": "2026-01-01T00:00:00+0000",
    }
    _write_json(path / "environment.json", environment)
    if "summary.json" not in leave_out:
        _write_json(path / "summary.json", _summary(steps))
    if "examples.npz" not in leave_out:
        write_examples(path / "examples.npz")
    return path


def stamped(clock: float, role: str, kind: str, **fields: Any) -> Event:
    """An event with both clocks."""
    return {
        "t": round(clock + WALL_MINUS_CLOCK, 4),
        "clock": round(clock, 6),
        "role": role,
        "kind": kind,
        **fields,
    }


def write_examples(path: Path, *, count: int = 7, channels: int = 3) -> None:
    """An `examples.npz` with a few pictures in each group."""
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {
        "score": rng.random(100, np.float32),
        "times_considered": np.full(100, 6, np.int32),
        "times_kept": rng.integers(0, 6, 100).astype(np.int32),
    }
    for group in ("easiest", "hardest", "never_kept"):
        arrays |= {
            f"{group}_ids": np.arange(count),
            f"{group}_images": rng.integers(0, 256, (count, 12, 12, channels), np.uint8),
            f"{group}_targets": np.arange(count) % CLASSES,
            f"{group}_predictions": np.arange(count) % 3,
            f"{group}_scores": rng.random(count).astype(np.float32),
            f"{group}_kept": np.arange(count, dtype=np.int32),
        }
    np.savez_compressed(path, allow_pickle=False, **arrays)


def _trainer(steps: int) -> Iterator[Event]:
    budget = {
        "total_steps": steps,
        "total_candidates": None,
        "num_examples": 100,
        "num_classes": CLASSES,
        "devices": 2,
    }
    yield stamped(
        BEGAN - 1.0,
        "trainer",
        "start",
        mode="pipelined",
        policy="sb",
        keep=0.3333,
        batch_size=32,
        seed=0,
        **budget,
    )
    for k in range(steps):
        yield _step(k, steps)
        if k % 10 == 9:
            told = {"share": (k + 1) / steps, "step": k + 1, "candidates": 96 * (k + 1), "queue": k % 40}
            yield stamped(
                _at(k + 1), "trainer", "progress", **told, swing=1.5, ess=0.93, strength=0.84, guard=1.0
            )
        if (k + 1) % max(1, steps // 6) == 0:
            yield from _measured(k + 1, steps)


def _step(k: int, steps: int) -> Event:
    begin, done = _at(k), k / steps
    queue = k % 3
    spans = {
        "wait": [begin - 0.008, 0.007],
        "receive": [begin - 0.002, 0.001],
        "view": [begin - 0.004, 0.002],
        "dispatch": [begin, 0.02],
        "forward": [begin, 0.012],
        "backward": [begin + 0.012, 0.022],
        "optimizer": [begin + 0.034, 0.003],
        "publish": [begin + 0.037, 0.002],
        "log": [begin + 0.039, 0.001],
    }
    return stamped(
        begin + STEP_S,
        "trainer",
        "step",
        step=k,
        candidates=96 * (k + 1),
        loss=round(2.3 * (1 - done) + 0.2 + 0.1 * math.sin(k / 3), 5),
        rate=0.1 * (1 - done),
        staleness_mean=1.0 + queue,
        spans=spans,
    )


def _measured(step: int, steps: int) -> Iterator[Event]:
    done = step / steps
    clock = _at(step)
    percentiles = [p / 100 for p in range(101)]
    yield stamped(
        clock,
        "trainer",
        "eval",
        step=step,
        candidates=96 * step,
        trained=32 * step,
        elapsed_s=step * STEP_S,
        evaluate_s=0.0,
        error=round(0.9 * (1 - done) + 0.05, 4),
        loss=1.0,
        class_errors=[0.1] * CLASSES,
    )
    yield stamped(
        clock,
        "trainer",
        "scores",
        step=step,
        candidates=96 * step,
        quantiles=[round(4 * p ** (1 + 4 * done), 5) for p in percentiles],
        class_considered=[100, 100, 100, 0],
        class_kept=[40, 30, round(20 + 10 * done), 0],
        times_kept=[30, 40, 20, 8, 2],
    )


def _selector(steps: int, number: int, selectors: int) -> Iterator[Event]:
    yield stamped(BEGAN - 0.5, "selector", "built", device="cpu")
    for lease in range(number, steps, selectors):
        begin = _at(lease) - 0.045
        spans = {
            "idle": [begin, 0.004],
            "await": [begin + 0.004, 0.002],
            "apply": [begin + 0.0045, 0.001],
            "view": [begin + 0.006, 0.001, begin + 0.022, 0.001],
            "score": [begin + 0.007, 0.014, begin + 0.023, 0.014],
            "select": [begin + 0.0372, 0.0005],
            "send": [begin + 0.038, 0.0004],
        }
        yield stamped(
            begin + 0.04,
            "selector",
            "selection",
            lease=lease,
            version=lease,
            candidates=96,
            kept=32,
            spans=spans,
        )


def _at(step: int) -> float:
    return BEGAN + step * STEP_S


def _config() -> dict[str, Any]:
    return {
        "mode": "pipelined",
        "seed": 0,
        "data": {"name": "embedded", "examples": 100},
        "model": {"name": "small_cnn", "options": {}},
        "train": {"batch_size": 32, "epochs": 6.0, "steps": 0, "seconds": 0.0},
        "selection": {"policy": "sb", "keep": 0.3333, "history": 1024},
        "sync": {"interval": 1, "depth": 2},
        "selector": {"precision": "fp32"},
    }


def _summary(steps: int) -> dict[str, Any]:
    return {
        "status": "finished",
        "mode": "pipelined",
        "seed": 0,
        "wall_s": steps * STEP_S,
        "train_s": steps * STEP_S,
        "steps": steps,
        "trained": 32 * steps,
        "candidates": 96 * steps,
        "keep_rate": 0.3333,
        "candidates_per_s": 1920.0,
        "devices": 2,
        "eval.error": 0.05,
        "trainer.forward_s": 0.012 * steps,
        "trainer.backward_s": 0.022 * steps,
        "trainer.optimizer_s": 0.003 * steps,
        "trainer.wait_s": 0.007 * steps,
        "selector.busy_s": 0.03 * steps,
        "trainer.busy_ratio": 0.8,
        "trainer.idle_ratio": 0.14,
        "selector.busy_ratio": 0.7,
        "selector.idle_ratio": 0.3,
        "staleness.mean": 2.0,
        "staleness.max": 3,
        "fidelity.spearman": 0.85,
        "selection.swing": 1.2,
        "selection.prediction_swing": 1.1,
        "selection.ess": 0.93,
        "selection.strength": 0.84,
        "selection.guard": 0.97,
        "staleness.fast_mean": 1.0,
        "device.trainer": "cpu",
        "device.selector": "cpu",
    }


def _write_lines(path: Path, events: Iterator[Event], leave_out: tuple[str, ...]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for event in events:
            if event["kind"] not in leave_out:
                file.write(
                    json.dumps({name: value for name, value in event.items() if name not in leave_out}) + "\n"
                )


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")
