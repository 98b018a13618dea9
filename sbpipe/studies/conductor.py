"""Runs a study, cell by cell or some side by side, and writes results after each. Knows no torch."""

import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from sbpipe.config import resolve
from sbpipe.show.terminal import Display, duration, percent, selector_line, trainer_line
from sbpipe.studies.cell_run import CellRun, stop_all
from sbpipe.studies.core_shares import core_shares, runs_alone
from sbpipe.studies.estimate import Running, time_left_s
from sbpipe.studies.folder import StudyFolder
from sbpipe.studies.outcome import Outcome, analyse
from sbpipe.studies.plan import Plan, PlannedCell
from sbpipe.studies.result import Result, read_result
from sbpipe.studies.results_file import write_results

_POLL_S = 0.25
_BAR = 24


class Conductor:
    """Runs the remaining cells of a plan, up to `jobs` at a time.

    Cells begin in the plan's order. A cell that needs the machine for itself waits until it is free, and the
    cells behind it wait too, so that a study with both kinds still runs seed by seed.
    """

    def __init__(
        self, plan: Plan, folder: StudyFolder, display: Display, *, retry: bool, jobs: int = 1
    ) -> None:
        self._plan, self._folder, self._display, self._jobs = plan, folder, display, jobs
        self._alone = {cell.cell for cell in plan.cells if jobs == 1 or runs_alone(resolve(cell.settings))}
        self._shares = core_shares(sorted(os.sched_getaffinity(0)), jobs)
        self._running: list[CellRun] = []
        self._results = {
            cell.cell: result for cell in plan.cells if (result := self._ended(cell, retry=retry)) is not None
        }

    def run(self) -> Outcome:
        """Run to the end or until a signal; a failed cell does not stop the others."""
        waiting = [cell for cell in self._plan.cells if cell.cell not in self._results]
        self._say_what_is_there(len(waiting))
        # Written before the first cell, so that a study with nothing left to run gets its tables too.
        analysis, is_stopped = self._write(), False
        with _terminate_as_interrupt():
            try:
                while waiting or self._running:
                    while waiting and self._may_start(waiting[0]):
                        self._start(waiting.pop(0))
                    if self._conclude_ended():
                        analysis = self._write()
                    else:
                        self._show(waiting)
                        time.sleep(_POLL_S)
            except KeyboardInterrupt:
                is_stopped = True
                names = ", ".join(run.cell.label for run in self._running) or "the study"
                self._display.say(f"stopping {names} (Ctrl-C again to kill)")
            finally:
                # Also after an error of our own: no cell may outlive its study.
                stop_all(self._running)
        return Outcome(self._plan, self._in_order(), analysis, is_stopped)

    def _ended(self, cell: PlannedCell, *, retry: bool) -> Result | None:
        state = self._folder.state(cell)
        if state is None or state.status == "running" or (state.status == "failed" and retry):
            return None
        return read_result(self._folder, cell, state)

    def _may_start(self, cell: PlannedCell) -> bool:
        """Whether a place is free; a cell that runs alone needs all of them."""
        if cell.cell in self._alone or any(run.cell.cell in self._alone for run in self._running):
            return not self._running
        return len(self._running) < self._jobs

    def _start(self, cell: PlannedCell) -> None:
        attempt = self._folder.clear(cell, self._display.say) + 1
        taken = [run.cores for run in self._running]
        cores = (
            None if cell.cell in self._alone else next(share for share in self._shares if share not in taken)
        )
        run = CellRun(self._folder, cell, attempt, cores)
        # Before its start, so that an interrupt finds it in the list and stops it.
        self._running.append(run)
        run.start()
        for one in self._running:
            one.has_beside(len(self._running) - 1)

    def _conclude_ended(self) -> bool:
        """Take the results of cells that have ended; returns whether there were any."""
        ended = [run for run in self._running if run.is_over()]
        for run in ended:
            # First, because a cell that is in the list when the study is stopped counts as not begun.
            self._running.remove(run)
            result = self._results[run.cell.cell] = read_result(self._folder, run.cell, run.conclude())
            self._say_how_it_went(result)
        return bool(ended)

    def _in_order(self) -> list[Result]:
        return [self._results[cell.cell] for cell in self._plan.cells if cell.cell in self._results]

    def _write(self) -> dict[str, Any]:
        results = self._in_order()
        analysis = analyse(self._plan, results)
        write_results(self._folder.path, self._plan, results, analysis)
        return analysis

    def _show(self, waiting: Sequence[PlannedCell]) -> None:
        done_s = {
            name: (result.cell, result.state.process_s)
            for name, result in self._results.items()
            if result.is_finished and result.state.process_s is not None
        }
        running = [
            Running(run.cell, run.elapsed_s, run.progress["left_s"] if run.progress else None)
            for run in self._running
        ]
        left_s = time_left_s(running, waiting, done_s, jobs=self._jobs, alone=self._alone)
        what = self._running[0].cell.label if self._jobs == 1 else f"{len(running)} running"
        line = study_line(len(self._results), len(self._plan.cells), what, left_s)
        self._display.lines(
            [line, *(cell_lines(self._running[0]) if self._jobs == 1 else map(cell_line, self._running))]
        )

    def _say_what_is_there(self, num_waiting: int) -> None:
        num_done = sum(result.is_finished for result in self._results.values())
        num_failed = len(self._results) - num_done
        if num_done:
            self._display.say(
                f"{num_done} of {len(self._plan.cells)} cells are done already, {num_waiting} to run"
            )
        if num_failed:
            self._display.say(f"{num_failed} failed before and are left as they are; --retry runs them again")

    def _say_how_it_went(self, result: Result) -> None:
        label, took = result.cell.label, duration(result.state.process_s)
        if result.is_finished:
            self._display.say(f"done    {label}: error {percent(result.summary.get('eval.error'))} in {took}")
        else:
            self._display.say(
                f"FAILED  {label} after {took}: {result.state.error} (log: "
                f"{self._folder.log_path(result.cell)})"
            )


def study_line(num_done: int, num_cells: int, label: str, left_s: float | None) -> str:
    """The progress of the whole study, in one line."""
    filled = round(_BAR * num_done / num_cells)
    return (
        f"study    {'█' * filled}{'░' * (_BAR - filled)} {num_done}/{num_cells}  {label}  left "
        f"{duration(left_s)}"
    )


def cell_lines(run: CellRun) -> list[str]:
    """The progress of the only running cell."""
    if run.progress is None:
        return [f"trainer  starting, {duration(run.elapsed_s)}"]
    return [trainer_line(run.progress), selector_line(run.progress)]


def cell_line(run: CellRun) -> str:
    """The progress of one of several running cells."""
    if run.progress is None:
        return f"  {run.cell.label}  starting, {duration(run.elapsed_s)}"
    at = run.progress
    return (
        f"  {run.cell.label}  {100 * at['share']:.0f}%  step {at['step']}  error {percent(at['error'])}  "
        f"left {duration(at['left_s'])}"
    )


@contextmanager
def _terminate_as_interrupt() -> Iterator[None]:
    """SIGTERM stops the study as Ctrl-C does."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    # In Python only the main thread can set handlers.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
