"""`sbpipe worth`: makes a plan from a run's settings or a WORTH.toml. Starts nothing.

The plan is a comparison with two kinds of arms: random selection, without scoring, at several multiples of
the job's updates N, and the policies at N. All policies share the runs of random selection.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sbpipe.config import Config, known_keys, parse_assignment, read_tables, read_toml, resolve
from sbpipe.errors import ConfigError
from sbpipe.runs.study.study import short, spoken
from sbpipe.studies.cells import STEPS, lay_out, varied_keys
from sbpipe.studies.comparison_plan import refuse_unlike_schedules
from sbpipe.studies.plan import WORTH, Plan, PlannedArm, Task
from sbpipe.studies.study_file import arms_in, base_in, seeds_in, tables_in
from sbpipe.studies.task_entries import tasks_in

KNOWN = ("name", "seeds", "budgets", "base", "tasks", "arms")
_MARKS = ("base", "tasks", "arms", "budgets")
"""Keys of a study's file that a run's settings do not have."""
BUDGETS = (0.5, 0.67, 1.0, 1.5, 2.0, 3.0, 4.0)
"""Multiples of N; with those below 1 the harm of a policy can be measured."""
# Only the final error counts; a file or a flag may ask for more.
_ONLY_THE_END = {"eval.every": 0.0, "checkpoint.every": 0}
# A comma before the next key; commas inside a list of values are kept.
_BETWEEN = re.compile(r",(?=\s*[A-Za-z_.]+=)")

CountExamples = Callable[[Config], int]
"""Counts the training examples of a job; called only if N is given in epochs."""


def plan_worth(
    path: Path | None,
    *,
    settings: Mapping[str, Any],
    arms: Sequence[str],
    budgets: Sequence[float] | None,
    seeds: list[int] | None,
    count_examples: CountExamples,
) -> Plan:
    """The plan of a file of settings, of a study's file, or of the defaults; flags override them."""
    tables = _tables(path)
    folder = path.parent if path is not None else Path()
    base = _ONLY_THE_END | base_in(tables, folder) | dict(settings)
    policies = [arm_flag(text) for text in arms] or arms_in(tables.get("arms", [])) or [_own_arm(base)]
    of_random = _random_arms(budgets or budgets_in(tables.get("budgets", list(BUDGETS))), base)
    _refuse_shared_names(policies, of_random)
    all_seeds = seeds if seeds is not None else seeds_in(tables.get("seeds", 3))
    tasks = _tasks(tables.get("tasks", []), policies, of_random, all_seeds, is_fixed=seeds is None)
    base, tasks = _in_steps(base, tasks, policies, count_examples)
    all_arms = [*of_random, *policies]
    cells = lay_out(base, all_arms, {}, all_seeds, tasks)
    for task in dict.fromkeys(cell.task for cell in cells):
        refuse_unlike_schedules([cell for cell in cells if cell.task == task])
    return Plan(
        kind=WORTH,
        name=str(tables.get("name", path.stem if path is not None else "run")),
        swept=[],
        seeds=all_seeds,
        cells=cells,
        baseline=_at_n(of_random),
        strategies={arm.name: arm.strategy for arm in all_arms},
        varied=varied_keys(all_arms, tasks),
        tasks=[task.name for task in tasks],
        budgets={arm.name: float(arm.steps_factor or 1.0) for arm in of_random},
    )


def arm_flag(text: str) -> PlannedArm:
    """`POLICY` or `POLICY@KEY=VALUE,KEY=VALUE`: a policy, and other settings of this arm."""
    policy, _, more = text.partition("@")
    settings = dict(parse_assignment(part) for part in filter(None, _BETWEEN.split(more)))
    for key, value in settings.items():
        if key not in known_keys():
            way_out = "Write POLICY@KEY=VALUE,KEY=VALUE, for instance steady@mode=fixed-lag,sync.lag=1"
            raise ConfigError(f"--arm {text!r}", f"{key}={value}", "is not a setting", way_out)
    told = [f"{short(key)}={spoken(value)}" for key, value in settings.items()]
    return PlannedArm(" ".join([policy.strip(), *told]), {"selection.policy": policy.strip(), **settings})


def budgets_in(value: Any, where: str = "budgets") -> list[float]:
    """Multiples of N at which random selection is run; N itself must be among them."""
    way_out = f"Write for instance {list(BUDGETS)}"
    is_list = isinstance(value, list) and all(
        isinstance(one, int | float) and not isinstance(one, bool) and 0 < one < float("inf") for one in value
    )
    if not is_list or len(set(value)) < len(value) or len(value) < 2:
        raise ConfigError(where, value, "is not a list of two or more multiples above 0", way_out)
    if 1 not in value:
        raise ConfigError(
            where, value, "leaves out 1: random selection at as many updates", f"{way_out}, 1 included"
        )
    return sorted(float(one) for one in value)


def budgets_flag(text: str) -> list[float]:
    """`--budgets 0.5,1,2,4`."""
    try:
        values = [float(part) for part in text.strip().strip(",").split(",")]
    except ValueError:
        reason, way_out = "is not a list of multiples", "Write for instance --budgets 0.5,1,2,4"
        raise ConfigError("--budgets", text, reason, way_out) from None
    return budgets_in(values, "--budgets")


def weaknesses(plan: Plan) -> list[str]:
    """Weaknesses of the measurement that a reader must know."""
    configs = [resolve(cell.settings) for cell in plan.cells]
    found = []
    if all(config.schedule.name == "constant" for config in configs):
        found.append("no learning rate decays: errors are those of unfinished training, and k means little")
    if len(plan.seeds) == 1:
        found.append("one seed: there is no interval, and any difference may be chance")
    elif len(plan.seeds) < 5:
        found.append(
            f"{len(plan.seeds)} seeds: an interval drawn from so few is narrower than it should be, by "
            f"{100 - 100 * ((len(plan.seeds) - 1) / len(plan.seeds)) ** 0.5:.0f} % or more"
        )
    return found


def _tables(path: Path | None) -> dict[str, Any]:
    """The tables of a study's file; the settings of a run are put under `base`."""
    if path is None:
        return {}
    there = read_tables(path, "file", "configs/ and configs/worth")
    return tables_in(path, KNOWN) if any(mark in there for mark in _MARKS) else {"base": read_toml(path)}


def _own_arm(base: Mapping[str, Any]) -> PlannedArm:
    """The arm if no policy is named: the policy of the settings."""
    policy = base.get("selection.policy", Config().selection.policy)
    return PlannedArm(str(policy), {"selection.policy": policy})


def _random_arms(budgets: Sequence[float], base: Mapping[str, Any]) -> list[PlannedArm]:
    settings: dict[str, Any] = {"mode": "inline", "selection.policy": "random"}
    # With equal chances for all, weighting by them does nothing.
    settings |= {"selection.unbiased": 0.0} if base.get("selection.unbiased") else {}
    return [PlannedArm(_random_name(one), settings, "random", steps_factor=one) for one in budgets]


def _random_name(factor: float) -> str:
    return f"random x{factor:g}"


def _at_n(of_random: Sequence[PlannedArm]) -> str:
    return next(arm.name for arm in of_random if arm.steps_factor == 1.0)


def _refuse_shared_names(policies: Sequence[PlannedArm], of_random: Sequence[PlannedArm]) -> None:
    names = [arm.name for arm in (*of_random, *policies)]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError("arms", twice, "is the name of two arms", "Name each of them once")


def _tasks(
    entries: Any,
    policies: Sequence[PlannedArm],
    of_random: Sequence[PlannedArm],
    seeds: Sequence[int],
    *,
    is_fixed: bool,
) -> list[Task]:
    """The tasks with their policies, each with random selection at every budget."""
    tasks = tasks_in(entries, policies, seeds, is_fixed=is_fixed)
    names = [arm.name for arm in of_random]
    return [replace(task, arms=[*names, *task.arms]) for task in tasks]


def _in_steps(
    base: dict[str, Any],
    tasks: Sequence[Task],
    policies: Sequence[PlannedArm],
    count_examples: CountExamples,
) -> tuple[dict[str, Any], list[Task]]:
    """N in steps everywhere: a budget in epochs becomes the steps that the first policy makes in them."""
    if tasks:
        counted = [
            replace(task, settings=_with_steps(base, task.settings, policies[0], count_examples))
            for task in tasks
        ]
        return base, counted
    return base | _with_steps(base, {}, policies[0], count_examples), []


def _with_steps(
    base: Mapping[str, Any], own: Mapping[str, Any], policy: PlannedArm, count_examples: CountExamples
) -> dict[str, Any]:
    """A task's settings with its N among them, unless steps are given already."""
    config = resolve({**base, **own, **policy.settings})
    if config.train.seconds:
        raise ConfigError(
            "train.seconds",
            config.train.seconds,
            "worth is counted in updates, not in seconds",
            "Set train.steps or train.epochs instead",
        )
    if config.train.steps:
        return dict(own)
    kept = config.train.epochs * count_examples(config) * config.selection.keep_rate
    return {**own, STEPS: max(1, int(kept) // config.train.batch_size)}
