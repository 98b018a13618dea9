"""The table of arms: what each reached, how fast, at which price, against the reference. Losing arms stay in.
Knows no picture.
"""

import statistics
from statistics import mean, stdev
from typing import Any

from sbpipe.runs.numbers import number
from sbpipe.show.report.grouping import Arm, Group, Target
from sbpipe.show.report.table import Table
from sbpipe.show.report.trials import Trial

NOTHING = "—"


def spread(values: list[float]) -> tuple[float | None, float | None]:
    """Mean and standard deviation over seeds (n - 1); None where there are too few values."""
    return mean(values) if values else None, stdev(values) if len(values) > 1 else None


def numbers_of(arm: Arm, group: Group) -> dict[str, Any]:
    """An arm's numbers, named as in a comparison's `analysis`; what the study worked out itself is taken as
    it stands.
    """
    stated = group.stated.get(arm.name, {})
    reference = next((other for other in group.arms if other.name == group.reference), None)
    errors = arm.final_errors
    before = reference.final_errors if reference else {}
    walls = [wall for trial in arm.finished if (wall := training_s(trial)) is not None]
    device_s = [wall * devices_of(trial) for trial in arm.finished if (wall := training_s(trial)) is not None]
    computed = {
        "n": len(arm.finished),
        "failed": sum(trial.status == "failed" for trial in arm.trials),
        **_named("error", list(errors.values())),
        **_named(
            "error_difference", [error - before[seed] for seed, error in errors.items() if seed in before]
        ),
        **_named("wall", walls),
        "device_s_mean": spread(device_s)[0],
        "cost_mean": None,
        "targets": [_target_numbers(arm, reference, target) for target in group.targets],
    }
    return {**computed, **{name: value for name, value in stated.items() if name != "curves"}}


def arm_table(group: Group, pareto_share: dict[str, float]) -> Table:
    """One row per arm, the paper's Table 1 with what it cost beside it."""
    rows = {arm.name: numbers_of(arm, group) for arm in group.arms}
    has_cost = any(row["cost_mean"] is not None for row in rows.values())
    header = [
        "arm",
        "runs finished",
        "final error (%)",
        "difference (points)",
        "wall time (s)",
        "device-seconds",
    ]
    header += ["price"] if has_cost else []
    header += [f"time to {100 * target.error:.2f} % ({target.factor:g}×)" for target in group.targets]
    header += ["share of Pareto points"] if pareto_share else []
    body = [
        [
            arm.name + (" (reference)" if arm.name == group.reference else ""),
            f"{rows[arm.name]['n']} of {len(arm.trials)}"
            + (f", {failed} failed" if (failed := rows[arm.name]["failed"]) else ""),
            *_cells_of(rows[arm.name], arm.name == group.reference),
            *([shown(rows[arm.name]["cost_mean"], digits=4)] if has_cost else []),
            *[
                _time_shown(target, arm.name == group.reference)
                for target in rows[arm.name]["targets"][: len(group.targets)]
            ],
            *([f"{100 * pareto_share.get(arm.name, 0.0):.0f} %"] if pareto_share else []),
        ]
        for arm in group.arms
    ]
    return Table(f"Arms{': ' + group.name if group.name else ''}", header, body, _meaning(group))


def devices_of(trial: Trial) -> float:
    """Devices held during a trial: what device-seconds are counted by."""
    stated = number(trial.numbers, "devices")
    return stated if stated is not None else 1.0 if trial.numbers.get("mode") == "inline" else 2.0


def shown(
    value: float | None,
    deviation: float | None = None,
    *,
    scale: float = 1.0,
    digits: int = 3,
    sign: str = "",
) -> str:
    """A number, with its deviation if there is one, or a dash."""
    if value is None:
        return NOTHING
    text = (
        f"{scale * value:{sign}.{digits}g}"
        if abs(scale * value) < 10**digits
        else f"{scale * value:{sign},.0f}"
    )
    return text if deviation is None else f"{text} ± {scale * deviation:.2g}"


def _cells_of(row: dict[str, Any], is_reference: bool) -> list[str]:
    difference = shown(row.get("error_difference_mean"), row.get("error_difference_sd"), scale=100, sign="+")
    return [
        shown(row.get("error_mean"), row.get("error_sd"), scale=100),
        NOTHING if is_reference else difference,
        shown(row.get("wall_mean"), row.get("wall_sd")),
        shown(row.get("device_s_mean")),
    ]


def _time_shown(target: dict[str, Any], is_reference: bool) -> str:
    """`12.3 ± 0.4 s, 3/3, 1.8×`: time, seeds that reached it, speed-up."""
    reached = f"{target['reached']}/{target['of']}"
    if not target["reached"]:
        return f"not reached, {reached}"
    speedup = NOTHING if is_reference else shown(target.get("speedup_mean"), target.get("speedup_sd"))
    return f"{shown(target.get('time_mean'), target.get('time_sd'))} s, {reached}" + (
        f", {speedup}×" if speedup != NOTHING else ""
    )


def _target_numbers(arm: Arm, reference: Arm | None, target: Target) -> dict[str, Any]:
    times = {trial.seed: time for trial in arm.finished if (time := trial.time_to(target.error)) is not None}
    paired = reference.finished if reference else []
    before = {trial.seed: time for trial in paired if (time := trial.time_to(target.error)) is not None}
    speedups = [before[seed] / time for seed, time in times.items() if seed in before and time > 0]
    return {
        "factor": target.factor,
        "reached": len(times),
        "of": len(arm.finished),
        **_named("time", list(times.values())),
        "speedup_mean": statistics.geometric_mean(speedups) if speedups else None,
        "speedup_sd": _named("speedup", speedups)["speedup_sd"],
    }


def training_s(trial: Trial) -> float | None:
    """A trial's wall time to its last evaluation, start-up included, measuring excluded."""
    if trial.curve:
        return trial.curve[-1].time_s
    whole = number(trial.numbers, "wall_s")
    return None if whole is None else whole - (number(trial.numbers, "trainer.evaluate_s") or 0.0)


def _named(name: str, values: list[float]) -> dict[str, float | None]:
    middle, deviation = spread(values)
    return {f"{name}_mean": middle, f"{name}_sd": deviation}


def _meaning(group: Group) -> str:
    parts = [
        "Mean ± standard deviation over the seeds that finished; times include start-up and exclude "
        "measuring the test error."
    ]
    if group.reference:
        parts.append(
            f"Differences and speed-ups are against {group.reference} ({group.reference_is}), seed by seed. "
            "A time is followed by how many seeds reached the target, and by the speed-up; it is the mean "
            "over those that did."
        )
    parts.append("Device-seconds bill every device that was held.")
    return " ".join(parts)
