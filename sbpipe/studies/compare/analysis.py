"""What a comparison says, as pure functions of curves and numbers.

Time to a target: seconds from the start of the run's process to the first evaluation whose error is at most
the target, start-up included, measuring excluded (`logbook.curve`). Targets are factors of the baseline's
mean final error. Device-seconds: time times the devices the run held, busy or not. Speed-up: the baseline's
time to the target over the arm's, of the same seed, as a geometric mean. Pareto-optimal: an evaluation, of
any arm and seed, that no other one beats or equals in both time and error while beating it in one. An arm's
Pareto share is the share of those evaluations it provides; an arm that is evaluated more often can provide
more of them.

Where there are tasks, all of this is said of each task by itself: nothing is a mean over two tasks.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from sbpipe.runs.curve import Point, frontier, time_to_target
from sbpipe.runs.study import INSTRUMENTS
from sbpipe.studies.plan import Plan
from sbpipe.studies.result import Result, num_beside
from sbpipe.studies.spread import cost, geometric_mean_of, mean_of, sd_of, target_error

Label = TypeVar("Label", bound=Hashable)
BySeed = Mapping[int, float]


def pareto_shares(curves: Sequence[tuple[Label, Sequence[Point]]]) -> dict[Label, float]:
    """Each label's share of all Pareto-optimal evaluations; labels without one have 0."""
    points = [(label, (point.time_s, point.error)) for label, curve in curves for point in curve]
    owners = [
        label
        for (label, _), is_optimal in zip(points, frontier([at for _, at in points]), strict=True)
        if is_optimal
    ]
    return {label: owners.count(label) / len(owners) if owners else 0.0 for label, _ in curves}


def paired(ours: BySeed, theirs: BySeed) -> list[tuple[float, float]]:
    """The pairs of equal seed, in the order of seeds; a seed that one side lacks is left out."""
    return [(ours[seed], theirs[seed]) for seed in sorted(ours.keys() & theirs.keys())]


def verdict(difference: float | None, spread: float | None) -> str | None:
    """Whether an error is `lower` or `higher` than the baseline's by more than the spread, or `within` it;
    None if either is unknown.
    """
    if difference is None or spread is None:
        return None
    return "within" if abs(difference) <= spread else "lower" if difference < 0 else "higher"


def analyse_comparison(plan: Plan, results: Sequence[Result]) -> dict[str, Any]:
    """What `results.json` says of a comparison: of all its cells or, where there are tasks, of those of each
    task.
    """
    if not plan.tasks:
        return _analyse(plan, results)
    parts = {
        task: _analyse(plan.of_task(task), [one for one in results if one.cell.task == task])
        for task in plan.tasks
    }
    return {"baseline": plan.baseline, "beside": num_beside(results), "tasks": parts}


def _analyse(plan: Plan, results: Sequence[Result]) -> dict[str, Any]:
    finished = {
        arm: [result for result in results if result.cell.arm == arm and result.is_finished]
        for arm in plan.arms
    }
    failed = {
        arm: sum(result.cell.arm == arm and not result.is_finished for result in results) for arm in plan.arms
    }
    assert plan.baseline is not None
    baseline = finished[plan.baseline]
    error = mean_of(list(_errors(baseline).values()))
    targets = [{"factor": factor, "error": target_error(factor, error)} for factor in plan.targets]
    curves = [(arm, result.curve) for arm, group in finished.items() for result in group]
    shares = pareto_shares(curves)
    strategies = pareto_shares([(plan.strategies.get(arm, arm), curve) for arm, curve in curves])
    return {
        "baseline": plan.baseline,
        "baseline_error": error,
        "beside": num_beside(results),
        "targets": targets,
        "strategies": strategies,
        "arms": {
            arm: _arm(group, baseline, targets, plan.price, failed[arm])
            | {
                "failed": failed[arm],
                "strategy": plan.strategies.get(arm, arm),
                "pareto_share": shares.get(arm, 0.0),
            }
            for arm, group in finished.items()
        },
    }


def _arm(
    group: Sequence[Result],
    baseline: Sequence[Result],
    targets: Sequence[dict[str, Any]],
    price: Mapping[str, float] | None,
    failed: int,
) -> dict[str, Any]:
    """One arm over its seeds, and against the baseline of the same seeds."""
    errors = _errors(group)
    walls = {result.cell.seed: result.curve[-1].time_s for result in group if result.curve}
    against = _errors(baseline)
    differences = [ours - theirs for ours, theirs in paired(errors, against)]
    spread = sd_of(differences)
    if spread is None:
        spread = max(
            (sd for values in (errors, against) if (sd := sd_of(list(values.values()))) is not None),
            default=None,
        )
    return {
        "n": len(group),
        "error_mean": mean_of(list(errors.values())),
        "error_sd": sd_of(list(errors.values())),
        "wall_mean": mean_of(list(walls.values())),
        "wall_sd": sd_of(list(walls.values())),
        **_spent(group, walls, price),
        "trained_mean": mean_of(
            [n for result in group if (n := result.number("trained") or result.number("kept")) is not None]
        ),
        "pairs": len(differences),
        "error_difference_mean": mean_of(differences),
        "error_difference_sd": sd_of(differences),
        "verdict": verdict(mean_of(differences), spread),
        "instruments": {name: mean_of(_numbers(group, name)) for name in INSTRUMENTS},
        "targets": [
            _target(target, group, baseline, price) | {"of": len(group) + failed} for target in targets
        ],
        "curves": {str(result.cell.seed): [asdict(point) for point in result.curve] for result in group},
    }


def _target(
    target: dict[str, Any],
    group: Sequence[Result],
    baseline: Sequence[Result],
    price: Mapping[str, float] | None,
) -> dict[str, Any]:
    times, theirs = _times(group, target["error"]), _times(baseline, target["error"])
    speedups = [base_s / own_s for own_s, base_s in paired(times, theirs)]
    return {
        "factor": target["factor"],
        "reached": len(times),
        "time_mean": mean_of(list(times.values())),
        "time_sd": sd_of(list(times.values())),
        **_spent(group, times, price),
        "pairs": len(speedups),
        "speedup_mean": geometric_mean_of(speedups),
        "speedup_sd": sd_of(speedups),
    }


def _spent(
    group: Sequence[Result], times: BySeed, price: Mapping[str, float] | None
) -> dict[str, float | None]:
    """Device-seconds and price of so many seconds of each seed."""
    devices = {result.cell.seed: result.devices for result in group}
    costs = [
        spent for seed, time_s in times.items() if (spent := cost(time_s, devices[seed], price)) is not None
    ]
    return {
        "device_s_mean": mean_of([time_s * devices[seed] for seed, time_s in times.items()]),
        "cost_mean": mean_of(costs),
    }


def _numbers(group: Sequence[Result], name: str) -> list[float]:
    return [value for result in group if (value := result.number(name)) is not None]


def _errors(group: Sequence[Result]) -> dict[int, float]:
    return {result.cell.seed: error for result in group if (error := result.number("eval.error")) is not None}


def _times(group: Sequence[Result], target: float | None) -> dict[int, float]:
    if target is None:
        return {}
    times = {result.cell.seed: time_to_target(result.curve, target) for result in group}
    return {seed: time_s for seed, time_s in times.items() if time_s is not None}
