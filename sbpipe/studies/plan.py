"""The plan of a study: its arms, tasks and cells, in running order. Records; knows no file."""

import json
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from sbpipe.runs.study.study import short, spoken
from sbpipe.runs.study.targets import FACTORS

SWEEP, COMPARISON, WORTH = "sweep", "comparison", "worth"
"""The kinds of study."""

TASK = "task"
"""The key of a cell's task among its swept values; it is no setting."""
INVERSE_KEEP = "1/keep"


@dataclass(frozen=True)
class PlannedArm:
    """One alternative: its name, what it sets, and the strategy it counts for in the Pareto share."""

    name: str
    settings: dict[str, Any]
    strategy: str = ""
    tasks: list[str] | None = None
    """The only tasks that it runs for; None = all of them."""
    steps_factor: float | str | None = None
    """The factor for its train.steps: a number, or "1/keep" of its selection.keep."""


@dataclass(frozen=True)
class Task:
    """A task that arms run for, such as a data set. It overrides the base, and an arm overrides it."""

    name: str
    settings: dict[str, Any]
    seeds: list[int]
    arms: list[str]

    def includes(self, arm: PlannedArm, seed: int) -> bool:
        """Whether this arm runs for this task with this seed."""
        return seed in self.seeds and arm.name in self.arms and (arm.tasks is None or self.name in arm.tasks)


@dataclass(frozen=True)
class PlannedCell:
    """One run to be made."""

    cell: str
    """Its folder's name."""
    arm: str
    seed: int
    swept: dict[str, Any]
    """The grid's keys, or `task`, and this cell's values."""
    settings: dict[str, Any]
    """Every setting that was given."""

    @property
    def label(self) -> str:
        """Its name for people."""
        swept = [f"{short(key)} {spoken(value)}" for key, value in self.swept.items()]
        return " ".join([self.arm, *swept, f"seed {self.seed}"])

    @property
    def task(self) -> str | None:
        """Its task; None in a study without tasks."""
        return self.swept.get(TASK)

    @property
    def point(self) -> str:
        """Its arm and point in the grid, as one key: equal for cells that differ only in the seed."""
        return json.dumps([self.arm, self.swept], sort_keys=True)


@dataclass(frozen=True)
class Plan:
    """All runs of a study, in running order."""

    kind: str
    name: str
    swept: list[str]
    seeds: list[int]
    cells: list[PlannedCell]
    baseline: str | None = None
    targets: list[float] = field(default_factory=lambda: list(FACTORS))
    price: dict[str, float] | None = None
    strategies: dict[str, str] = field(default_factory=dict)
    """Each arm's strategy."""
    varied: list[str] = field(default_factory=list)
    """Keys that arms and tasks set: columns of the results beside the swept ones."""
    tasks: list[str] = field(default_factory=list)
    budgets: dict[str, float] = field(default_factory=dict)
    """In a study of worth: the arms of random selection, and the multiple of the updates that each makes."""

    def as_json(self) -> dict[str, Any]:
        """The plan as in `plan.json`; empty tasks and budgets are left out."""
        tables: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return {key: value for key, value in tables.items() if key not in ("tasks", "budgets") or value}

    @property
    def arms(self) -> list[str]:
        """The arms, in order."""
        return list(dict.fromkeys(cell.arm for cell in self.cells))

    def of_task(self, task: str) -> "Plan":
        """The part of the plan that is one task."""
        cells = [cell for cell in self.cells if cell.task == task]
        seeds = [seed for seed in self.seeds if any(cell.seed == seed for cell in cells)]
        return replace(self, name=f"{self.name}, task {task}", seeds=seeds, cells=cells, tasks=[])
