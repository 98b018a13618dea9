"""`sbpipe bench`: measures the docs' claims on this machine. Timings belong here, and in no test.

Each file measures one thing; this one runs them and prints the table. Nothing else imports this room.
"""

import json
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from sbpipe.bench.rows import Row, table
from sbpipe.errors import ConfigError

BENCHES = (
    "selection",
    "views",
    "link",
    "publish",
    "scoring",
    "startup",
    "memory",
    "pipeline",
    "waiting",
    "own_loop",
    "plan",
    "growth",
)
"""The files with a `measure() -> list[Row]`; imported on request, since most need torch."""
APART = ("scale",)
"""The same, but only if named: they take minutes."""


def main(what: list[str], *, as_json: bool) -> int:
    """Run the named benches, or all; 0 if every bar is met, 1 if one is missed."""
    what = [name.replace("-", "_") for name in what]
    for name in what:
        if name not in (*BENCHES, *APART):
            raise ConfigError("bench", name, "unknown", f"It is one of {', '.join((*BENCHES, *APART))}")
    rows: list[Row] = []
    for name in what or BENCHES:
        sys.stderr.write(f"measuring {name} ...\n")
        rows += import_module(f"sbpipe.bench.{name}").measure()
    return _say(rows, as_json=as_json)


def growth_bench(steps: int, *, as_json: bool) -> int:
    """What a run of so many steps leaves."""
    from sbpipe.bench.growth import measure

    return _say(measure(steps), as_json=as_json)


def scoring_bench(given: Mapping[str, Any], run: Path | None, *, as_json: bool, compiled: bool) -> int:
    """The table of precisions and batch sizes of one model, or of those with a bar, and the bars."""
    from sbpipe.bench.scored import bars, precisions_table, to_dicts
    from sbpipe.bench.scoring import measure_precisions

    found = measure_precisions(given, run, compiled=compiled)
    rows = bars(found)
    text = json.dumps(to_dicts(found), indent=2) if as_json else f"{precisions_table(found)}\n\n{table(rows)}"
    sys.stdout.write(text + "\n")
    return _exit_code(rows)


def _say(rows: list[Row], *, as_json: bool) -> int:
    text = json.dumps([row.to_dict() for row in rows], indent=2) if as_json else table(rows)
    sys.stdout.write(text + "\n")
    return _exit_code(rows)


def faults_bench(only: list[str], *, is_quick: bool, as_json: bool) -> int:
    """A real training under each fault; 1 if one of them ended as it must not."""
    from sbpipe.bench.faults.rows import faults_table, measure_faults, to_dicts

    rows = measure_faults(only, is_quick=is_quick)
    text = json.dumps(to_dicts(rows), indent=2) if as_json else faults_table(rows)
    sys.stdout.write(text + "\n")
    return 1 if any(row.missed for row in rows) else 0


def lockstep_bench(runs: int, *, as_json: bool) -> int:
    """Runs in lockstep that are killed; 1 if one ended with other weights."""
    from sbpipe.bench.faults.lockstep import measure_lockstep

    return _say(measure_lockstep(runs), as_json=as_json)


def soak_bench(minutes: float, every_s: float, *, as_json: bool) -> int:
    """A long training under random kills; 1 if anything was lost, or grew."""
    from sbpipe.bench.faults.soak import planned, rows_of, soak, verdict

    soaked = soak(planned(minutes, every_s))
    rows = rows_of(soaked)
    code = _say(rows, as_json=as_json)
    sys.stderr.write(f"{verdict(soaked, rows)}\n")
    return code


def stranger_bench(minutes: float, *, as_json: bool) -> int:
    """Another user of the host attacks a run; 1 if that user gets anything, or slows it down."""
    from sbpipe.bench.stranger.measure import measure_stranger

    return _say(measure_stranger(minutes), as_json=as_json)


def accelerator_bench(only: list[str], out: Path | None, *, is_quick: bool, as_json: bool) -> int:
    """What only hardware can tell, in a file to send; 1 if a check failed."""
    from sbpipe.bench.accelerator import report

    names, place = report.chosen(only), out or Path(report.OUT)
    report.refuse_without()
    report.check_place(place)
    found = report.gather(names, is_quick=is_quick, ask=report.in_a_process)
    report.save(found, place)
    sys.stdout.write(json.dumps(found, indent=2) + "\n" if as_json else report.page(found))
    sys.stderr.write(f"{place} holds it all, and nothing that tells who or where you are: please send it\n")
    return 1 if report.has_failed(found) else 0


def _exit_code(rows: list[Row]) -> int:
    return 0 if all(row.is_met is not False for row in rows) else 1
