"""Which runs a study consists of: arms times a grid or tasks times seeds, each checked before anything
starts. Pure; knows no file.
"""

import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from sbpipe.config import Config, resolve, toml_value, warnings_of
from sbpipe.errors import ConfigError, UserError

TARGETS = (1.1, 1.2, 1.4)
"""Target errors as factors of a reference error, as in the paper's Table 1."""

TASK = "task"
"""What a cell's task is called among its swept values; it is no setting."""
INVERSE_KEEP = "1/keep"
STEPS = "train.steps"
_LONGEST_NAME = 120


@dataclass(frozen=True)
class Arm:
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
    """What all arms are run for, such as a data set: its name, and what it sets over the base and under the
    arms.
    """

    name: str
    settings: dict[str, Any]
    seeds: list[int]
    arms: list[str]

    def includes(self, arm: Arm, seed: int) -> bool:
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
        return " ".join(
            [
                self.arm,
                *(f"{short(key)} {spoken(value)}" for key, value in self.swept.items()),
                f"seed {self.seed}",
            ]
        )

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
    targets: list[float] = field(default_factory=lambda: list(TARGETS))
    price: dict[str, float] | None = None
    strategies: dict[str, str] = field(default_factory=dict)
    """Each arm's strategy."""
    varied: list[str] = field(default_factory=list)
    """Keys that arms and tasks set: columns of the results beside the swept ones."""
    tasks: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """The plan as `plan.json` holds it; one without tasks says nothing of them."""
        tables: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return {key: value for key, value in tables.items() if key != "tasks" or value}

    @property
    def arms(self) -> list[str]:
        """The arms, in order."""
        return list(dict.fromkeys(cell.arm for cell in self.cells))

    def of_task(self, task: str) -> "Plan":
        """The part of the plan that is one task."""
        cells = [cell for cell in self.cells if cell.task == task]
        seeds = [seed for seed in self.seeds if any(cell.seed == seed for cell in cells)]
        return replace(self, name=f"{self.name}, task {task}", seeds=seeds, cells=cells, tasks=[])


def short(key: str) -> str:
    """The last part of a dotted key."""
    return key.rpartition(".")[2]


def spoken(value: Any) -> str:
    """A value as a person says it: text without quotes, anything else as TOML."""
    return value if isinstance(value, str) else toml_value(value)


def lay_out(
    base: Mapping[str, Any],
    arms: Sequence[Arm],
    grid: Mapping[str, Sequence[Any]],
    seeds: Sequence[int],
    tasks: Sequence[Task] = (),
) -> list[PlannedCell]:
    """Every arm at every point of the grid, or for every task, with every seed, checked.

    Seed by seed, so that a drift of the machine hits all alike; then task by task, then arm by arm. Without
    arms a cell is labelled by its mode. A cell whose settings cannot be resolved is named and nothing else
    happens.
    """
    _refuse_conflicts(base, arms, grid, tasks)
    points = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    rounds: Sequence[Task | None] = tasks or [None]
    cells: list[PlannedCell] = []
    names: set[str] = set()
    for seed, task, point, arm in itertools.product(seeds, rounds, points, arms or [Arm("", {})]):
        if task is not None and not task.includes(arm, seed):
            continue
        swept = point if task is None else {TASK: task.name, **point}
        given = {**base, **(task.settings if task else {}), **arm.settings, **point, "seed": seed}
        settings = given | _stretched(arm, given, task)
        config = _checked(PlannedCell("", arm.name, seed, swept, settings))
        label = arm.name or config.mode
        name = _unused(_folder_name(label, swept, seed), names)
        cells.append(PlannedCell(name, label, seed, swept, settings))
    return cells


def warnings_in(cells: Iterable[PlannedCell]) -> list[str]:
    """Settings without effect, each said once with the first cell it concerns."""
    found: dict[str, str] = {}
    for cell in cells:
        for text in warnings_of(resolve(cell.settings)):
            found.setdefault(text, cell.label)
    return [f"{label}: {text}" for text, label in found.items()]


def differences(there: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """How two plans differ, in a few words each, changed settings first; [] if they are the same."""
    if there.get("kind") != now["kind"]:
        return [f"it is a {there.get('kind')}, not a {now['kind']}"]
    before = {cell["cell"]: cell for cell in there.get("cells", [])}
    after = {cell["cell"]: cell for cell in now["cells"]}
    found: dict[str, None] = {}
    for name in sorted(after.keys() & before.keys()):
        old, new = before[name]["settings"], after[name]["settings"]
        for key in sorted(key for key in {*old, *new} if old.get(key) != new.get(key)):
            found[f"{key} is {toml_or_none(old.get(key))} there and {toml_or_none(new.get(key))} here"] = None
    keys = [key for key in now if key != "cells" and there.get(key) != now[key]]
    found |= {
        f"{key} is {toml_or_none(there.get(key))} there and {toml_or_none(now[key])} here": None
        for key in keys
    }
    found |= {f"cell {name} is only there": None for name in before if name not in after}
    found |= {f"cell {name} is only here": None for name in after if name not in before}
    return list(found) or (["the order of the cells"] if there != now else [])


def refuse_overruled(cells: Iterable[PlannedCell], flags: Mapping[str, Any]) -> None:
    """A setting given for all cells must reach all of them: what the file says of an arm or the grid is not
    silently kept.
    """
    for cell in cells:
        for key, value in flags.items():
            if cell.settings[key] != value:
                reason = (
                    f"the grid, a task or an arm sets it to {toml_or_none(cell.settings[key])} for "
                    f"{cell.label!r}"
                )
                raise ConfigError(f"--set {key}", value, reason, "Change it there, or leave this one out")


_MAY_GROW = ("seeds", "cells", "strategies", "varied", "tasks")


def has_grown(there: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether a plan is an earlier one with cells added: more seeds, values, arms or tasks, and every earlier
    cell as it was.
    """
    after = {cell["cell"]: cell for cell in now["cells"]}
    is_same = all(there.get(key) == now[key] for key in now if key not in _MAY_GROW)
    return is_same and all(after.get(cell["cell"]) == cell for cell in there.get("cells", []))


def toml_or_none(value: Any) -> str:
    """A value as people write it."""
    return "not given" if value is None else toml_value(value)


def _refuse_conflicts(
    base: Mapping[str, Any], arms: Sequence[Arm], grid: Mapping[str, Sequence[Any]], tasks: Sequence[Task]
) -> None:
    owners = [
        *((f"arm {arm.name!r}", arm.settings) for arm in arms),
        *((f"task {task.name!r}", task.settings) for task in tasks),
    ]
    for where, keys in [("base", base), ("grid", grid), *owners]:
        if "seed" in keys:
            raise ConfigError(
                "seed",
                keys["seed"],
                f"is set in the {where}, but a study has seeds",
                "Use seeds = [...] or --seeds",
            )
    for arm in arms:
        both = [key for key in arm.settings if key in grid]
        if both:
            value = arm.settings[both[0]]
            raise ConfigError(
                both[0],
                value,
                f"is set by arm {arm.name!r} and swept by the grid too",
                "Leave it out of one of them",
            )


def _stretched(arm: Arm, given: Mapping[str, Any], task: Task | None) -> dict[str, int]:
    """The steps of an arm that trains a multiple of what is given for all."""
    if arm.steps_factor is None:
        return {}
    key = f"arm {arm.name!r} steps_factor"
    if STEPS in arm.settings:
        raise ConfigError(key, arm.steps_factor, f"the arm sets {STEPS} too", "Leave one of them out")
    steps = given.get(STEPS)
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        where = "[base]" if task is None else f"task {task.name!r} or [base]"
        reason = f"multiplies {STEPS}, which is {toml_or_none(steps)}"
        raise ConfigError(key, arm.steps_factor, reason, f"Set {STEPS} to a number of steps in {where}")
    if arm.steps_factor != INVERSE_KEEP:
        return {STEPS: max(1, round(steps * float(arm.steps_factor)))}
    keep = given.get("selection.keep", Config().selection.keep)
    if isinstance(keep, bool) or not isinstance(keep, int | float) or keep <= 0:
        raise ConfigError(
            "selection.keep", keep, f"has no inverse, which {key} asks for", "Set a share above 0"
        )
    return {STEPS: max(1, round(steps / keep))}


def _checked(cell: PlannedCell) -> Config:
    try:
        return resolve(cell.settings)
    except ConfigError as error:
        raise UserError(f"cell {cell.label.strip()!r}: {error}. Nothing was started") from None


def _folder_name(arm: str, point: Mapping[str, Any], seed: int) -> str:
    parts = [arm, *(f"{short(key)}-{spoken(value)}" for key, value in point.items())]
    plain = "_".join(re.sub(r"[^A-Za-z0-9._=-]+", "-", part).strip("-.") for part in parts)
    return f"{plain[:_LONGEST_NAME]}_seed-{seed}"


def _unused(name: str, names: set[str]) -> str:
    """The name, numbered if an earlier cell has it."""
    free = next(free for k in itertools.count(1) if (free := name if k == 1 else f"{name}_{k}") not in names)
    names.add(free)
    return free
