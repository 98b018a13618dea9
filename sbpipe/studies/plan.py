"""What a study consists of: its arms, tasks and cells, in the order they are run. Records; knows no file."""

import json
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from sbpipe.runs.study.study import short, spoken
from sbpipe.runs.study.targets import FACTORS

SWEEP, COMPARISON, WORTH = "sweep", "comparison", "worth"
"""The kinds of study."""

TASK = "task"
"""What a cell's task is called among its swept values; it is no setting."""
INVERSE_KEEP = "1/keep"


@dataclass(frozen=True)
class PlannedArm:
    """One alternative: its name, what it sets, and the strategy it counts for in the Pareto share."""

    name: str
    settings: dict[str, Any]
    strategy: str = ""
    tasks: list[str] | None = None
    """The only tasks it runs for; None: all of them."""
    steps_factor: float | str | None = None
    """What its train.steps are multiplied by: a number, or "1/keep" of its selection.keep."""


@dataclass(frozen=True)
class Task:
    """What all arms are run for, such as a data set; its settings lie over the base and under the arms."""

    name: str
    settings: dict[str, Any]
    seeds: list[int]
    arms: list[str]

    def includes(self, arm: PlannedArm, seed: int) -> bool:
        """Whether this arm runs for it with this seed."""
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
        """What a person calls it."""
        swept = [f"{short(key)} {spoken(value)}" for key, value in self.swept.items()]
        return " ".join([self.arm, *swept, f"seed {self.seed}"])

    @property
    def task(self) -> str | None:
        """Its task; None in a study without tasks."""
        return self.swept.get(TASK)

    @property
    def point(self) -> str:
        """What cells that differ by nothing but the seed have in common."""
        return json.dumps([self.arm, self.swept], sort_keys=True)


@dataclass(frozen=True)
class Plan:
    """All runs of a study, in the order they are made."""

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
    """Of a study of worth: the arms of random selection, and which multiple of the updates each makes."""

    def as_json(self) -> dict[str, Any]:
        """The plan as `plan.json` holds it; one without tasks or budgets says nothing of them."""
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
