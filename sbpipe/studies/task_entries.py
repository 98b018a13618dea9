"""Reads the [[tasks]] of a comparison's file, such as data sets that arms run on. Starts nothing."""

from collections.abc import Mapping, Sequence
from typing import Any

from sbpipe.errors import ConfigError
from sbpipe.studies.plan import PlannedArm, Task
from sbpipe.studies.study_file import named_in, names_in, seeds_in, settings_beside

_WORDS = ("name", "settings", "seeds", "arms")


def tasks_in(entries: Any, arms: Sequence[PlannedArm], seeds: Sequence[int], *, is_fixed: bool) -> list[Task]:
    """The [[tasks]]: each has a name, settings and, if not all, its `arms` and `seeds` (which or how many).

    `is_fixed` says that the seeds come from the file; those of a flag may be fewer than a task asks for.
    """
    names = [arm.name for arm in arms]
    tasks = [_task(entry, names, seeds, is_fixed=is_fixed) for entry in named_in(entries, "task")]
    known = [task.name for task in tasks]
    for arm in arms:
        _refuse_unknown(arm.tasks or [], known, f"arm {arm.name!r} tasks", "task")
        if tasks and not any(task.includes(arm, seed) for task in tasks for seed in seeds):
            reason = "no task that it names lists it" if arm.tasks else "no task lists it"
            raise ConfigError(
                f"arm {arm.name!r} tasks", arm.tasks, reason, "Name it in the arms of a task, or leave it out"
            )
    for task in tasks:
        if not any(task.includes(arm, seed) for arm in arms for seed in seeds):
            raise ConfigError(
                f"task {task.name!r} arms",
                task.arms,
                "none of them runs for it",
                "Name it in the tasks of an arm",
            )
    return tasks


def refuse_without_baseline(tasks: Sequence[Task], baseline: PlannedArm) -> None:
    """Refuse tasks or seeds without the baseline: errors are compared by task and seed."""
    for task in tasks:
        if not all(task.includes(baseline, seed) for seed in task.seeds):
            reason = f"the baseline {baseline.name!r} does not run for it"
            raise ConfigError(
                f"task {task.name!r}",
                task.arms,
                reason,
                "Add it to the task's arms, or name another baseline",
            )


def _task(entry: Mapping[str, Any], arms: Sequence[str], seeds: Sequence[int], *, is_fixed: bool) -> Task:
    where = f"task {entry['name']!r}"
    only = names_in(entry.get("arms"), f"{where} arms")
    _refuse_unknown(only or [], arms, f"{where} arms", "arm")
    own = _seeds(entry.get("seeds"), seeds, f"{where} seeds", is_fixed=is_fixed)
    return Task(entry["name"], settings_beside(entry, _WORDS, where), own, only or list(arms))


def _seeds(value: Any, seeds: Sequence[int], where: str, *, is_fixed: bool) -> list[int]:
    """A task's share of the study's seeds: the first so many, or those listed."""
    if value is None:
        return list(seeds)
    asked = seeds_in(value, where)
    # A number means the first seeds, so that tasks share seeds.
    own = list(seeds[: len(asked)]) if isinstance(value, int) else [seed for seed in seeds if seed in asked]
    if not own or (is_fixed and len(own) < len(asked)):
        reason = f"asks for more than the study's seeds, which are {', '.join(map(str, seeds))}"
        raise ConfigError(where, value, reason, "A task may have fewer seeds than the study, not others")
    return own


def _refuse_unknown(names: Sequence[str], known: Sequence[str], where: str, word: str) -> None:
    for name in names:
        if name not in known:
            listed = (
                f"The {word}s are {', '.join(known)}" if known else f"There are no {word}s: write [[{word}s]]"
            )
            raise ConfigError(where, name, f"is not the name of a {word}", listed)
