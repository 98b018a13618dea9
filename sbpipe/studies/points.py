"""The analysis of a sweep: one point per arm and grid value, its numbers as mean and spread over seeds. Pure.

A sweep has no baseline, so its target errors are factors of the mean final error of its first point: the
first arm at the first value of every swept key, which is fixed before anything runs.
"""

from collections.abc import Callable, Sequence
from typing import Any

from sbpipe.runs.curve import time_to_target
from sbpipe.studies.plan import Plan
from sbpipe.studies.result import Result, num_beside
from sbpipe.studies.spread import mean_of, sd_of, target_error

NUMBERS = {
    "error": "eval.error",
    "staleness": "staleness.mean",
    "staleness_max": "staleness.max",
    "idle": "trainer.idle_ratio",
    "selector_idle": "selector.idle_ratio",
    "bytes_per_s": "sync.bytes_per_s",
    "fidelity": "fidelity.spearman",
    "keep_rate": "keep_rate",
    "candidates_per_s": "candidates_per_s",
    "train_s": "train_s",
}
"""A point's numbers, each with the name it has in a run's summary."""


def analyse_sweep(plan: Plan, results: Sequence[Result]) -> dict[str, Any]:
    """What `results.json` says of a sweep."""
    groups: dict[str, list[Result]] = {cell.point: [] for cell in plan.cells}
    for result in results:
        groups[result.cell.point].append(result)
    reference = mean_of(final_errors(groups[plan.cells[0].point]))
    targets = [{"factor": factor, "error": target_error(factor, reference)} for factor in plan.targets]
    return {
        "reference": plan.cells[0].point,
        "reference_error": reference,
        "beside": num_beside(results),
        "targets": targets,
        "points": [point_of(group, targets) for group in groups.values() if group],
    }


def final_errors(results: Sequence[Result]) -> list[float]:
    """The last test error of every run that finished."""
    return values_of(results, lambda result: result.number("eval.error"))


def values_of(results: Sequence[Result], ask: Callable[[Result], float | None]) -> list[float]:
    """What finished runs answer, without those that know nothing."""
    answers = [ask(result) for result in results if result.is_finished]
    return [answer for answer in answers if answer is not None]


def point_of(results: Sequence[Result], targets: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One point: n runs that differ by the seed only."""
    cell = results[0].cell
    num_finished = sum(result.is_finished for result in results)
    point: dict[str, Any] = {
        "arm": cell.arm,
        "swept": cell.swept,
        "n": num_finished,
        "failed": len(results) - num_finished,
    }
    for name, source in NUMBERS.items():
        point |= _spread(name, values_of(results, lambda result, source=source: result.number(source)))  # type: ignore[misc]
    point |= _spread(
        "wall", values_of(results, lambda result: result.curve[-1].time_s if result.curve else None)
    )
    point["targets"] = [_reached(results, target, num_finished) for target in targets]
    middle = point["targets"][len(targets) // 2]
    return point | {
        "target_factor": middle["factor"],
        "time_to_target_mean": middle["time_mean"],
        "reached": middle["reached"],
    }


def _reached(results: Sequence[Result], target: dict[str, Any], num_finished: int) -> dict[str, Any]:
    error = target["error"]
    times = [] if error is None else values_of(results, lambda result: time_to_target(result.curve, error))
    return {"factor": target["factor"], "reached": len(times), "of": num_finished, **_spread("time", times)}


def _spread(name: str, values: Sequence[float]) -> dict[str, float | None]:
    return {f"{name}_mean": mean_of(values), f"{name}_sd": sd_of(values)}
