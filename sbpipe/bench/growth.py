"""What a long run leaves and costs: bytes of events, its report's time and memory, telemetry per step.

Only what needs torch is imported late: the report is made by this file in a process that has none.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from sbpipe.bench.rows import Row, one_core
from sbpipe.config import resolve
from sbpipe.runs.density import STEPS
from sbpipe.runs.names.files import REPORT
from sbpipe.show.report.build import build_report

STEPS_BY_DEFAULT = 20_000
_TIMED, _REPEATS = 400, 9


def measure(steps: int = STEPS_BY_DEFAULT) -> list[Row]:
    """A made-up run of so many steps, and its report in a process of its own."""
    from sbpipe.bench.long_run import write_long_run

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
    """Seconds and megabytes of a report with its figures, made in a process of its own."""
    begin = time.perf_counter()
    command = [sys.executable, "-m", "sbpipe.bench.growth", str(run)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return time.perf_counter() - begin, float(done.stdout)


def _most_memory_mb() -> float:
    # Not `getrusage`, which begins with what the process had that started this one.
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) / 1e3 for line in lines if line.startswith("VmHWM:"))


def _telemetry_us(first_step: int) -> float:
    """Processor time of what the loop calls for a step, its share of `progress` included."""
    from sbpipe.bench.long_run import LongRun

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


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    build_report([folder], folder / REPORT)
    sys.stdout.write(f"{_most_memory_mb()}\n")
