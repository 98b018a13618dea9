"""Conducts a study: cell after cell, skipping what is done, writing results after each. Reads events; knows no torch."""

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from sbpipe.progress import Display, duration, percent, selector_line, trainer_line
from sbpipe.study.cell_run import CellRun
from sbpipe.study.estimate import time_left_s
from sbpipe.study.folder import Folder
from sbpipe.study.plan import Plan, PlannedCell
from sbpipe.study.result import Result, read_result
from sbpipe.study.results import write_results

Analyse = Callable[[Plan, Sequence[Result]], dict[str, Any]]
_POLL_S = 0.25
_BAR = 24


@dataclass
class Outcome:
    """How a study stands when its conductor stops."""

    results: list[Result]
    analysis: dict[str, Any]
    is_stopped: bool = False
    failed: list[Result] = field(default_factory=list)


class Conductor:
    """Runs what is left of a plan."""

    def __init__(self, plan: Plan, folder: Folder, analyse: Analyse, display: Display, *, retry: bool) -> None:
        self._plan, self._folder, self._analyse, self._display = plan, folder, analyse, display
        self._results = {cell.cell: result for cell in plan.cells if (result := self._ended(cell, retry=retry)) is not None}

    def run(self) -> Outcome:
        """Run to the end, or until a signal; a failed cell does not stop the others."""
        waiting = [cell for cell in self._plan.cells if cell.cell not in self._results]
        self._say_what_is_there(len(waiting))
        analysis, is_stopped = self._write(), False
        with _terminate_as_interrupt():
            try:
                while waiting:
                    cell = waiting.pop(0)
                    result = self._run_cell(cell, waiting)
                    self._results[cell.cell] = result
                    analysis = self._write()
                    self._say_how_it_went(result)
            except KeyboardInterrupt:
                is_stopped = True
        failed = [result for result in self._in_order() if not result.is_finished]
        return Outcome(self._in_order(), analysis, is_stopped, failed)

    def _ended(self, cell: PlannedCell, *, retry: bool) -> Result | None:
        state = self._folder.state(cell)
        if state is None or state.status == "running" or (state.status == "failed" and retry):
            return None
        return read_result(self._folder, cell, state)

    def _run_cell(self, cell: PlannedCell, waiting: Sequence[PlannedCell]) -> Result:
        attempt = self._folder.clear(cell, self._display.say) + 1
        run = CellRun(self._folder, cell, attempt)
        try:
            run.start()
            while not run.is_over():
                self._show(cell, run, waiting)
                time.sleep(_POLL_S)
        except KeyboardInterrupt:
            self._display.say(f"stopping {cell.label} (Ctrl-C again to kill it)")
            run.stop()
            raise
        return read_result(self._folder, cell, run.conclude())

    def _in_order(self) -> list[Result]:
        return [self._results[cell.cell] for cell in self._plan.cells if cell.cell in self._results]

    def _write(self) -> dict[str, Any]:
        results = self._in_order()
        analysis = self._analyse(self._plan, results)
        write_results(self._folder.path, self._plan, results, analysis)
        return analysis

    def _show(self, cell: PlannedCell, run: CellRun, waiting: Sequence[PlannedCell]) -> None:
        done_s = {
            name: (result.cell, result.state.process_s)
            for name, result in self._results.items()
            if result.is_finished and result.state.process_s is not None
        }
        own_left_s = run.progress["left_s"] if run.progress else None
        left_s = time_left_s(cell, run.elapsed_s, own_left_s, waiting, done_s)
        lines = [study_line(len(self._results), len(self._plan.cells), cell.label, left_s)]
        if run.progress:
            lines += [trainer_line(run.progress), selector_line(run.progress)]
        else:
            lines.append(f"trainer  starting, {duration(run.elapsed_s)}")
        self._display.lines(lines)

    def _say_what_is_there(self, num_waiting: int) -> None:
        num_done = sum(result.is_finished for result in self._results.values())
        num_failed = len(self._results) - num_done
        if num_done:
            self._display.say(f"{num_done} of {len(self._plan.cells)} cells are done already, {num_waiting} to run")
        if num_failed:
            self._display.say(f"{num_failed} failed before and are left as they are; --retry runs them again")

    def _say_how_it_went(self, result: Result) -> None:
        label, took = result.cell.label, duration(result.state.process_s)
        if result.is_finished:
            self._display.say(f"done    {label}: error {percent(result.summary.get('eval.error'))} in {took}")
        else:
            self._display.say(f"FAILED  {label} after {took}: {result.state.error} (log: {self._folder.log_path(result.cell)})")


def study_line(num_done: int, num_cells: int, label: str, left_s: float | None) -> str:
    """Where the whole study stands, in one line."""
    filled = round(_BAR * num_done / num_cells)
    return f"study    {'█' * filled}{'░' * (_BAR - filled)} {num_done}/{num_cells}  {label}  left {duration(left_s)}"


@contextmanager
def _terminate_as_interrupt() -> Iterator[None]:
    """SIGTERM stops the study as Ctrl-C does."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
