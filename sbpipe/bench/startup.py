"""How soon the command line answers, and how soon a run trains."""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from sbpipe.bench.rows import Row
from sbpipe.runs.directory import TRAINER_EVENTS


def measure() -> list[Row]:
    """`--help`, and both roles to the first step."""
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        subprocess.run([sys.executable, "-m", "sbpipe", "--help"], check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - begin)
    return [
        # The median: the first one reads the files from disk.
        Row("startup", "sbpipe --help", sorted(times)[2], "s", at_most=0.5),
        Row("startup", "sbpipe run, both roles to the first step", _first_step_s(), "s", at_most=15.0),
    ]


def _first_step_s() -> float:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        begin = time.time()
        settings = ["--no-report", "--set", "train.steps=3", "--set", "eval.every=0"]
        command = [sys.executable, "-m", "sbpipe", "run", "--run-dir", str(path), *settings]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        events = [json.loads(line) for line in (path / TRAINER_EVENTS).read_text().splitlines()]
    return float(next(event["t"] for event in events if event["kind"] == "progress")) - begin
