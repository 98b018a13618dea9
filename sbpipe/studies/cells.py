"""Makes the cells of a plan from arms, a grid or tasks, and seeds; checks all before a run starts. Pure."""

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sbpipe.config import TRAITS, Config, SelectionConfig, resolve, toml_value, warnings_of
from sbpipe.errors import ConfigError, UserError
from sbpipe.runs.study.study import short, spoken
from sbpipe.studies.plan import INVERSE_KEEP, TASK, PlannedArm, PlannedCell, Task

STEPS = "train.steps"
# File systems refuse names of more than 255 bytes, and endings are added.
_LONGEST_NAME = 120


def lay_out(
    base: Mapping[str, Any],
    arms: Sequence[PlannedArm],
    grid: Mapping[str, Sequence[Any]],
    seeds: Sequence[int],
    tasks: Sequence[Task] = (),
) -> list[PlannedCell]:
    """Every arm at every point of the grid, or for every task, with every seed, checked.

    The order is by seed, so that a drift of the machine affects all arms alike; then by task, then by arm.
    Without arms a cell is labelled by its mode. A cell whose settings cannot be resolved is refused by name.
    """
    _refuse_conflicts(base, arms, grid, tasks)
    points = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    rounds: Sequence[Task | None] = tasks or [None]
    cells: list[PlannedCell] = []
    names: set[str] = set()
    # The last factor of a product varies fastest, so this is the order in which cells run.
    for seed, task, point, arm in itertools.product(seeds, rounds, points, arms or [PlannedArm("", {})]):
        if task is not None and not task.includes(arm, seed):
            continue
        swept = point if task is None else {TASK: task.name, **point}
        # Later ones win: an arm's own settings must hold in every task.
        given = {**base, **(task.settings if task else {}), **arm.settings, **point, "seed": seed}
        settings = given | _stretched(arm, given, task)
        config = _checked(PlannedCell("", arm.name, seed, swept, settings))
        label = arm.name or config.mode
        name = _unused(_folder_name(label, swept, seed), names)
        cells.append(PlannedCell(name, label, seed, swept, settings))
    return cells


def warnings_in(cells: Iterable[PlannedCell]) -> list[str]:
    """Settings without effect, each named once with the first cell that has it."""
    found: dict[str, str] = {}
    for cell in cells:
        for text in warnings_of(resolve(cell.settings)):
            found.setdefault(text, cell.label)
    return [f"{label}: {text}" for text, label in found.items()]


def refuse_overruled(cells: Iterable[PlannedCell], flags: Mapping[str, Any]) -> None:
    """Refuse a flag for all cells that an arm, a task or the grid silently overrules."""
    for cell in cells:
        for key, value in flags.items():
            if cell.settings[key] != value:
                reason = (
                    f"the grid, a task or an arm sets it to {toml_or_none(cell.settings[key])} for "
                    f"{cell.label!r}"
                )
                raise ConfigError(f"--set {key}", value, reason, "Change it there, or leave this one out")


def varied_keys(arms: Sequence[PlannedArm], tasks: Sequence[Task] = ()) -> list[str]:
    """Every key that an arm or a task sets."""
    stretched = [STEPS] if any(arm.steps_factor is not None for arm in arms) else []
    given = [*(task.settings for task in tasks), *(arm.settings for arm in arms)]
    return list(dict.fromkeys([*(key for settings in given for key in settings), *stretched]))


def toml_or_none(value: Any) -> str:
    """A value as TOML, or `not given`."""
    return "not given" if value is None else toml_value(value)


def _refuse_conflicts(
    base: Mapping[str, Any],
    arms: Sequence[PlannedArm],
    grid: Mapping[str, Sequence[Any]],
    tasks: Sequence[Task],
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


def _stretched(arm: PlannedArm, given: Mapping[str, Any], task: Task | None) -> dict[str, int]:
    """The steps of an arm with a `steps_factor`: a multiple of the steps given for all."""
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
    keep = given.get("selection.keep", SelectionConfig.keep)
    if keep == "auto":
        policy = given.get("selection.policy", SelectionConfig.policy)
        keep = TRAITS[policy].keep_start if policy in TRAITS else keep
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
    """The name, with a number if an earlier cell has it."""
    free = next(free for k in itertools.count(1) if (free := name if k == 1 else f"{name}_{k}") not in names)
    names.add(free)
    return free
