"""What a long run leaves and costs: bytes of events, its report's time and memory, telemetry per step."""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from sbpipe.bench.long_run import LongRun, write_long_run
from sbpipe.bench.rows import Row, one_core
from sbpipe.config import resolve
from sbpipe.runs.density import STEPS

STEPS_BY_DEFAULT = 20_000
_TIMED, _REPEATS = 400, 9


def measure(steps: int = STEPS_BY_DEFAULT) -> list[Row]:
    """A made-up run of so many steps, and its report in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        run = write_long_run(Path(folder) / "run", steps)
        wrote_s = time.perf_counter() - begin
        num_bytes = sum(
            file.stat().st_size for pattern in ("events-*", "recent-*") for file in run.glob(pattern)
        )
        report_s, report_mb = _report(run)
        rows = [
            Row("growth", f"{steps:,} steps: events", num_bytes / 1e6, "MB", at_most=200.0),
            Row("growth", f"{steps:,} steps: report", report_s, "s", at_most=120.0),
            Row("growth", f"{steps:,} steps: report, memory", report_mb, "MB", at_most=1000.0),
            Row("growth", f"{steps:,} steps: written in", wrote_s, "s"),
        ]
    with one_core():
        return [
            *rows,
            Row("growth", "telemetry of a step, written alone", _telemetry_us(0), "µs"),
            Row("growth", "telemetry of a step, in a window", _telemetry_us(16 * STEPS.dense + 1000), "µs"),
        ]


def _report(run: Path) -> tuple[float, float]:
    """Seconds and megabytes of `sbpipe report`."""
    begin = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "sbpipe", "report", str(run)], stdout=subprocess.DEVNULL
    )
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, process.args)
    return time.perf_counter() - begin, used.ru_maxrss / 1e3


def _telemetry_us(first_step: int) -> float:
    """Processor time of what the loop calls for a step, its share of `progress` included."""
    times = []
    for _ in range(_REPEATS):
        with tempfile.TemporaryDirectory() as folder:
            run = LongRun(Path(folder), resolve({}), first_step + _TIMED, first_step=first_step)
            run.telemetry.begin()
            for step in range(first_step, first_step + _TIMED):
                run.take_step(step)
            run.close()
            times.append(1e6 * run.telemetry_s / _TIMED)
    return statistics.median(times)
