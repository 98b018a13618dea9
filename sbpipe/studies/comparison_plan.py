"""`sbpipe compare`: makes a plan from an ARMS.toml. Starts nothing."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sbpipe.config import resolve
from sbpipe.errors import ConfigError
from sbpipe.runs.study.targets import FACTORS
from sbpipe.studies.cells import lay_out, varied_keys
from sbpipe.studies.plan import COMPARISON, Plan, PlannedArm, PlannedCell
from sbpipe.studies.study_file import arms_in, base_in, seeds_in, tables_in, targets_in
from sbpipe.studies.task_entries import refuse_without_baseline, tasks_in

KNOWN = ("name", "seeds", "baseline", "targets", "price", "base", "tasks", "arms")
_ROLES = ("trainer", "selector")


def plan_comparison(path: Path, *, settings: Mapping[str, Any], seeds: list[int] | None) -> Plan:
    """The plan of a file, with the flags' settings over its base."""
    tables = tables_in(path, KNOWN)
    arms = arms_in(tables.get("arms", []))
    if not arms:
        raise ConfigError(
            "arms", [], f"{path} names no arms", 'Write [[arms]], then name = "..." and settings below it'
        )
    all_seeds = seeds if seeds is not None else seeds_in(tables.get("seeds", 3))
    tasks = tasks_in(tables.get("tasks", []), arms, all_seeds, is_fixed=seeds is None)
    baseline = baseline_of(tables.get("baseline"), arms)
    refuse_without_baseline(tasks, next(arm for arm in arms if arm.name == baseline))
    cells = lay_out(base_in(tables, path.parent) | dict(settings), arms, {}, all_seeds, tasks)
    # Only within a task: tasks are never compared with each other.
    for task in dict.fromkeys(cell.task for cell in cells):
        refuse_unlike_schedules([cell for cell in cells if cell.task == task])
    return Plan(
        kind=COMPARISON,
        name=str(tables.get("name", path.stem)),
        swept=[],
        seeds=all_seeds,
        cells=cells,
        baseline=baseline,
        targets=targets_in(tables.get("targets", list(FACTORS))),
        price=price_in(tables.get("price")),
        strategies={arm.name: arm.strategy for arm in arms},
        varied=varied_keys(arms, tasks),
        tasks=[task.name for task in tasks],
    )


def baseline_of(named: Any, arms: Sequence[PlannedArm]) -> str:
    """The arm that all others are compared with: the named one, or the first."""
    names = [arm.name for arm in arms]
    if named is None:
        return names[0]
    if named not in names:
        raise ConfigError("baseline", named, "is not the name of an arm", f"The arms are {', '.join(names)}")
    return str(named)


def price_in(table: Any) -> dict[str, float] | None:
    """The price of each role's device per hour, in any currency."""
    if table is None:
        return None
    way_out = "Write [price] with trainer = 2.5 and selector = 0.5, per device-hour"
    if not isinstance(table, Mapping) or set(table) != set(_ROLES):
        raise ConfigError("price", table, "must name trainer and selector", way_out)
    for role in _ROLES:
        if isinstance(table[role], bool) or not isinstance(table[role], int | float) or table[role] < 0:
            raise ConfigError(f"price.{role}", table[role], "is not a price", way_out)
    return {role: float(table[role]) for role in _ROLES}


def refuse_unlike_schedules(cells: Sequence[PlannedCell]) -> None:
    """Refuse arms that end at their peak learning rate beside arms whose rate has decayed."""
    schedules = {cell.arm: resolve(cell.settings).schedule.name for cell in cells}
    constant = [arm for arm, name in schedules.items() if name == "constant"]
    if constant and len(constant) < len(schedules):
        decayed = next(arm for arm, name in schedules.items() if name != "constant")
        reason = (
            f"the rate of arm {constant[0]!r} never decays, that of arm {decayed!r} does: their errors "
            "cannot be compared"
        )
        raise ConfigError(
            "schedule.name", "constant", reason, "Give all arms a schedule that decays, or none"
        )


def weaknesses(plan: Plan) -> list[str]:
    """Weaknesses of the comparison that a reader must know."""
    configs = [resolve(cell.settings) for cell in plan.cells]
    found = []
    if all(config.schedule.name == "constant" for config in configs):
        found.append("no arm's learning rate decays: final errors are those of unfinished training")
    if any(config.num_ranks > 1 for config in configs):
        found.append(
            "arms of several ranks normalise over each rank's share of a batch, as DDP does, not over the "
            "whole of it"
        )
    if len(plan.seeds) == 1:
        found.append("one seed: there is no spread, and a difference may be chance")
    if any(not config.eval.every for config in configs):
        found.append("eval.every = 0: an arm measured only at its end reaches every target at its end")
    return found
