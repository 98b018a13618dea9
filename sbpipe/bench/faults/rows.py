"""Makes a table of trials: when a fault was noticed, what it cost, what was lost, and how the run ended."""

import os
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sbpipe.bench.faults.cases import FAULTS
from sbpipe.bench.faults.fault import Fault
from sbpipe.bench.faults.trial import Ending, Hung, Trial
from sbpipe.bench.rows import cells_table
from sbpipe.errors import ConfigError

NOTICED_S = 6.0
"""A fault that the user must know of is reported within so many seconds."""
HEADER = ("fault", "noticed", "stopped", "idle", "lost", "twice", "exit", "error", "")


@dataclass(frozen=True)
class FaultRow:
    """The effects of one fault; None = does not apply, or unknown."""

    fault: str
    missed: str
    """What is wrong; "" = nothing."""
    noticed_s: float | None = None
    stopped_s: float | None = None
    """The longest time between two steps after the fault."""
    idle: float | None = None
    lost: int | None = None
    twice: int | None = None
    code: int | None = None
    error: float | None = None

    def cells(self) -> tuple[str, ...]:
        """For people."""
        return (
            self.fault,
            _cell(self.noticed_s, "{:.1f} s"),
            _cell(self.stopped_s, "{:.1f} s"),
            _cell(self.idle, "{:.1%}"),
            _cell(self.lost, "{}"),
            _cell(self.twice, "{}"),
            _cell(self.code, "{}"),
            _cell(self.error, "{:.1%}"),
            f"MISSED: {self.missed}" if self.missed else "as it must be",
        )


def _cell(value: float | None, form: str) -> str:
    return "–" if value is None else form.format(value)


def faults_table(rows: Iterable[FaultRow]) -> str:
    """One line for each fault."""
    return cells_table([HEADER, *(row.cells() for row in rows)])


def to_dicts(rows: Iterable[FaultRow]) -> list[dict[str, Any]]:
    """For programs."""
    return [asdict(row) for row in rows]


def measure_faults(only: list[str], *, is_quick: bool) -> list[FaultRow]:
    """The fault-free run, then one run under each fault whose name holds one of the words."""
    chosen = [fault for fault in FAULTS if not only or any(word in fault.name for word in only)]
    if not chosen:
        raise ConfigError("--only", " ".join(only), "no fault is called so", "Leave it out to see them all")
    chosen = [fault for fault in chosen if fault.is_quick or not is_quick]
    rows = []
    for fault in [Fault("none", lambda trial, run: run), *chosen]:
        sys.stderr.write(f"  {fault.name} ...\n")
        rows.append(measured(fault))
        sys.stderr.write(f"    {'  '.join(rows[-1].cells()[1:])}\n")
    return rows


def measured(fault: Fault, within_s: float = NOTICED_S) -> FaultRow:
    """One run under one fault, which must be reported within so many seconds."""
    if fault.needs_root and os.geteuid() != 0:
        return FaultRow(fault.name, "not run: only root can make it happen")
    with tempfile.TemporaryDirectory(prefix="sbpipe-faults-", ignore_cleanup_errors=True) as folder:
        trial = Trial(Path(folder), fault.changes, fault.around)
        try:
            run = fault.inflict(trial, fault.begin(trial))
            ending = trial.ending(run)
        except Hung as hung:
            sys.stderr.write(f"{hung}\n")
            return FaultRow(fault.name, str(hung).splitlines()[0])
        finally:
            trial.close()
        noticed_s = trial.noticed_s(fault.says, trial.fault_at) if fault.says else None
        stopped_s = trial.longest_stop_s(trial.fault_at) if trial.fault_at else None
        missed = "; ".join(shortcomings(fault, noticed_s, within_s, ending))
        if missed:
            sys.stderr.write(f"{ending.words}\n")
        return FaultRow(
            fault.name,
            missed,
            noticed_s,
            stopped_s,
            ending.idle,
            ending.lost,
            ending.twice,
            ending.code,
            ending.error,
        )


def shortcomings(fault: Fault, noticed_s: float | None, within_s: float, ending: Ending) -> Iterable[str]:
    """What is wrong, in words."""
    if fault.says and noticed_s is None:
        yield f"nothing was said of it ({fault.says})"
    elif noticed_s is not None and noticed_s > within_s:
        yield f"noticed after {noticed_s:.1f} s, not {within_s:g}"
    if ending.code != fault.code:
        yield f"ended with code {ending.code}, not {fault.code}"
    if fault.must_cover and (ending.lost is None or ending.twice is None):
        yield "what was considered is not known"
    elif fault.must_cover and (ending.lost or ending.twice):
        yield f"{ending.lost} candidates lost, {ending.twice} considered twice"
