"""The analysis of trials, as pure functions: a sweep by points, a comparison by arms against its baseline.

Time to a target: seconds from the start of the run's process to the first evaluation whose error is at most
the target, start-up included, measuring excluded (`runs.curve`). Targets are factors of the mean final error
of the baseline or, in a sweep, of the first point, which is fixed before anything runs. Device-seconds: time
times the devices the run held, busy or not. Speed-up: the baseline's time to the target over the arm's, of
the same seed, as a geometric mean. Pareto-optimal: an evaluation, of any arm and seed, that no other one
beats or equals in both time and error while beating it in one. An arm that is evaluated more often has more.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from sbpipe.runs.study.arm import Arm
from sbpipe.runs.study.pareto import pareto_shares
from sbpipe.runs.study.spread import geometric_mean_of, mean_of, paired, sd_of, spread_of
from sbpipe.runs.study.targets import targets_of
from sbpipe.runs.study.trial import Trial

POINT_NUMBERS = {
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
"""The numbers of a sweep's point, each with the name it has in a run's summary."""
INSTRUMENTS = (
    "selection.swing",
    "selection.ess",
    "selection.strength",
    "fidelity.spearman",
    "staleness.mean",
)
"""Numbers of a run's summary on its selection."""
Price = Mapping[str, float]
"""The price of each role's device, per hour."""


def analyse_sweep(arms: Sequence[Arm], factors: Sequence[float]) -> dict[str, Any]:
    """The analysis of a sweep, as in `results.json`: each arm is one point of its grid."""
    reference = mean_of(arms[0].errors)
    targets = targets_of(factors, reference)
    return {
        "reference": arms[0].point,
        "reference_error": reference,
        "beside": _num_beside(arms),
        "targets": targets,
        "points": [_point(arm, targets) for arm in arms],
    }


def analyse_comparison(
    arms: Sequence[Arm],
    baseline: str | None,
    factors: Sequence[float],
    *,
    price: Price | None = None,
    strategies: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The analysis of a comparison, or of one of its tasks, as in `results.json`. No mean spans two tasks."""
    strategy_of = {arm.name: (strategies or {}).get(arm.name, arm.name) for arm in arms}
    # A baseline without runs is an arm without trials: whatever is relative to it is unknown.
    against = next((arm for arm in arms if arm.name == baseline), Arm("", []))
    error = mean_of(against.errors)
    targets = targets_of(factors, error)
    curves = [(arm.name, trial.curve) for arm in arms for trial in arm.finished]
    shares = pareto_shares(curves)
    return {
        "baseline": baseline,
        "baseline_error": error,
        "beside": _num_beside(arms),
        "targets": targets,
        "strategies": pareto_shares([(strategy_of[name], curve) for name, curve in curves]),
        "arms": {
            arm.name: _arm(arm, against, targets, price)
            | {"strategy": strategy_of[arm.name], "pareto_share": shares.get(arm.name, 0.0)}
            for arm in arms
        },
    }


def verdict(difference: float | None, spread: float | None) -> str | None:
    """`lower` or `higher` than the baseline by more than the spread, else `within` it; None if unknown."""
    if difference is None or spread is None:
        return None
    return "within" if abs(difference) <= spread else "lower" if difference < 0 else "higher"


def cost(time_s: float, devices: int, price: Price | None) -> float | None:
    """The price of `time_s`: one device at the trainer's price, every further one at the selector's."""
    if price is None:
        return None
    return time_s / 3600.0 * (price["trainer"] + (devices - 1) * price["selector"])


def _num_beside(arms: Sequence[Arm]) -> int:
    return sum(trial.beside > 0 for arm in arms for trial in arm.trials)


def _point(arm: Arm, targets: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One point of a sweep: n runs that differ by the seed only."""
    point: dict[str, Any] = {
        "arm": arm.label,
        "swept": arm.swept,
        "n": len(arm.finished),
        "failed": arm.num_failed,
    }
    for name, source in POINT_NUMBERS.items():
        point |= spread_of(name, arm.numbers(source))
    point |= spread_of("wall", _times(arm))
    point["targets"] = [_reached(arm, target) for target in targets]
    # A table has room for one target: the middle one.
    middle = point["targets"][len(targets) // 2]
    return point | {
        "target_factor": middle["factor"],
        "time_to_target_mean": middle["time_mean"],
        "reached": middle["reached"],
    }


def _reached(arm: Arm, target: dict[str, Any]) -> dict[str, Any]:
    times = list(arm.times_to(target["error"]).values())
    return {
        "factor": target["factor"],
        "reached": len(times),
        "of": len(arm.finished),
        **spread_of("time", times),
    }


def _arm(arm: Arm, baseline: Arm, targets: Sequence[dict[str, Any]], price: Price | None) -> dict[str, Any]:
    """One arm over its seeds, and against the baseline of the same seeds."""
    differences = [ours - theirs for ours, theirs in paired(arm.errors_by_seed, baseline.errors_by_seed)]
    of_differences = spread_of("error_difference", differences)
    # A run without `trained` is counted by `kept`, which is larger by at most a part of the last batch.
    trained = [trial.number("trained") or trial.number("kept") for trial in arm.finished]
    return {
        "n": len(arm.finished),
        "failed": arm.num_failed,
        **spread_of("error", arm.errors),
        **spread_of("wall", _times(arm)),
        **_spent([(trial, trial.time_s) for trial in arm.finished], price),
        "trained_mean": mean_of([number for number in trained if number is not None]),
        "pairs": len(differences),
        **of_differences,
        "verdict": verdict(mean_of(differences), _spread_between(arm, baseline, differences)),
        "instruments": {name: mean_of(arm.numbers(name)) for name in INSTRUMENTS},
        "targets": [_target(arm, baseline, target, price) for target in targets],
        "curves": {str(trial.seed): [asdict(point) for point in trial.curve] for trial in arm.finished},
    }


def _spread_between(arm: Arm, baseline: Arm, differences: Sequence[float]) -> float | None:
    """The spread that a difference must exceed; if too few seeds are paired, the larger one of both arms."""
    spread = sd_of(differences)
    if spread is not None:
        return spread
    return max((sd for one in (arm, baseline) if (sd := sd_of(one.errors)) is not None), default=None)


def _target(arm: Arm, baseline: Arm, target: dict[str, Any], price: Price | None) -> dict[str, Any]:
    times = arm.times_to(target["error"])
    # A time of 0 gives no speed-up.
    pairs = [pair for pair in paired(times, baseline.times_to(target["error"])) if pair[0] > 0]
    speedups = [theirs_s / ours_s for ours_s, theirs_s in pairs]
    return {
        "factor": target["factor"],
        "reached": len(times),
        # A run that failed did not reach the target either.
        "of": len(arm.finished) + arm.num_failed,
        **spread_of("time", list(times.values())),
        **_spent([(trial, trial.time_to(target["error"])) for trial in arm.finished], price),
        "pairs": len(speedups),
        "speedup_mean": geometric_mean_of(speedups),
        "speedup_sd": sd_of(speedups),
    }


def _times(arm: Arm) -> list[float]:
    return [time_s for trial in arm.finished if (time_s := trial.time_s) is not None]


def _spent(times: Sequence[tuple[Trial, float | None]], price: Price | None) -> dict[str, float | None]:
    """Device-seconds and price of the trials' seconds."""
    known = [(trial.devices, time_s) for trial, time_s in times if time_s is not None]
    costs = [spent for devices, time_s in known if (spent := cost(time_s, devices, price)) is not None]
    return {
        "device_s_mean": mean_of([time_s * devices for devices, time_s in known]),
        "cost_mean": mean_of(costs),
    }
