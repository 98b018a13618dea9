"""A folder of runs made by `sbpipe sweep`, `compare` or `worth`: its plan, its rows and its cells."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sbpipe.config import toml_value
from sbpipe.errors import RunDirError
from sbpipe.runs.json_file import read_note
from sbpipe.runs.reader import Run, read_run

PLAN = "plan.json"
RESULTS = "results.json"
CELLS = "cells"


@dataclass(frozen=True)
class Cell:
    """One run of a study: its place in the plan, and how it ended."""

    name: str
    path: Path
    arm: str
    seed: int
    swept: dict[str, Any]
    row: dict[str, Any]
    """Its row of `results.csv`; {} while it has none."""

    def run(self) -> Run:
        """Its run directory, read."""
        return read_run(self.path)

    def state(self) -> dict[str, Any]:
        """How its process ended, as the study noted it beside the run directory; {} if there is no note."""
        return read_note(self.path)


@dataclass(frozen=True)
class Study:
    """A sweep or a comparison."""

    path: Path
    kind: str
    plan: dict[str, Any]
    analysis: dict[str, Any]
    facts: list[str]
    """What a reader needs to judge the numbers: hardware, versions, cautions."""
    cells: list[Cell]

    @property
    def arms(self) -> list[str]:
        """The arms, in the plan's order."""
        return list(dict.fromkeys(cell.arm for cell in self.cells))

    @property
    def tasks(self) -> list[str]:
        """The tasks of a comparison that has them, in the plan's order."""
        return list(self.plan.get("tasks") or [])

    def parts(self) -> list["Study"]:
        """The parts that are compared separately: each task with its cells; without tasks the whole study."""
        return [self._of_task(task) for task in self.tasks] or [self]

    def _of_task(self, task: str) -> "Study":
        plan = {**self.plan, "name": f"{self.plan.get('name') or self.path.name}, task {task}", "tasks": []}
        analysis = self.analysis.get("tasks", {}).get(task, {})
        return replace(
            self,
            plan=plan,
            analysis=analysis,
            cells=[cell for cell in self.cells if cell.swept.get("task") == task],
        )


def read_study(path: Path) -> Study:
    """Read a study's folder; cells without results are included, with an empty row."""
    try:
        plan = json.loads((path / PLAN).read_text(encoding="utf-8"))
        results = (
            json.loads((path / RESULTS).read_text(encoding="utf-8")) if (path / RESULTS).exists() else {}
        )
        _check(plan, results)
        rows = {row["cell"]: row for row in results.get("rows", [])}
        cells = [_cell(planned, path, rows) for planned in plan["cells"]]
        kind = str(plan["kind"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RunDirError(
            f"{path} is not a sweep or comparison ({error}). Name a folder that `sbpipe sweep` or `compare` "
            "made"
        ) from None
    return Study(path, kind, plan, results.get("analysis", {}), results.get("facts", []), cells)


_IN_PLAN = {"cells": list, "tasks": list, "swept": list, "targets": list, "strategies": dict, "budgets": dict}
_IN_RESULTS = {"rows": list, "analysis": dict, "facts": list}


def _check(plan: Any, results: Any) -> None:
    """Refuse a plan or results whose parts have other types than a study writes."""
    for table, file, kinds in ((plan, PLAN, _IN_PLAN), (results, RESULTS, _IN_RESULTS)):
        _must(isinstance(table, dict), f"{file} holds no table")
        for name, kind in kinds.items():
            _must(isinstance(table.get(name, kind()), kind), f"{name} in {file} is no {kind.__name__}")
    _must(bool(plan["cells"]), f"cells in {PLAN} is empty")


def _must(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)


def _cell(planned: dict[str, Any], path: Path, rows: dict[str, Any]) -> Cell:
    name, arm, seed, swept = (planned[key] for key in ("cell", "arm", "seed", "swept"))
    # A name is a folder in `cells`, and leads nowhere else.
    _must(isinstance(name, str) and Path(name).name == name not in ("", ".."), f"{name!r} is no cell's name")
    is_sound = isinstance(arm, str) and isinstance(seed, int) and isinstance(swept, dict)
    _must(is_sound, f"arm, seed or swept of cell {name!r} has another type than a study writes")
    return Cell(name, path / CELLS / name, arm, seed, swept, rows.get(name, {}))


def short(key: str) -> str:
    """The last part of a dotted key."""
    return key.rpartition(".")[2]


def spoken(value: Any) -> str:
    """A value for people: text without quotes, anything else as TOML."""
    return value if isinstance(value, str) else toml_value(value)
