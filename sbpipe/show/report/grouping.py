"""From runs and studies to what is compared: arms of trials, the arm they are measured against, the targets.
Knows no picture.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from statistics import mean
from typing import Any

from sbpipe.config import flatten, keeps_all
from sbpipe.runs import Cell, Run, Study
from sbpipe.runs.curve import Point, curve_of
from sbpipe.show.report.trials import Trial, trial_of_run

FACTORS = (1.1, 1.2, 1.4)
"""The paper's targets: so many times the final error of the reference."""
INDIFFERENT = ("seed", "link.", "checkpoint.")
"""Settings that do not make another arm."""
CURVE = tuple(Point.__dataclass_fields__)
TELLING = 3
"""More differing settings than this say less than the folder's name."""


@dataclass(frozen=True)
class Arm:
    """Trials that differ only in their seed."""

    name: str
    trials: list[Trial]
    swept: dict[str, Any] = field(default_factory=dict)
    label: str = ""
    """What the plan calls it; arms of a sweep may share it."""

    @property
    def finished(self) -> list[Trial]:
        """The trials that came to their end."""
        return [trial for trial in self.trials if trial.is_finished]

    @property
    def final_errors(self) -> dict[int | None, float]:
        """The final errors by seed."""
        return {trial.seed: trial.final_error for trial in self.finished if trial.final_error is not None}


@dataclass(frozen=True)
class Target:
    """An error to be reached."""

    factor: float
    error: float


@dataclass(frozen=True)
class Group:
    """Arms that are shown together."""

    name: str
    kind: str
    """`runs`, `sweep` or `comparison`."""
    arms: list[Arm]
    reference: str | None
    """The arm that differences, speed-ups and targets are counted from."""
    reference_is: str
    """Who chose it, in words."""
    targets: list[Target]
    swept: list[str] = field(default_factory=list)
    stated: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Numbers per arm that a study has worked out itself."""
    strategies: dict[str, str] = field(default_factory=dict)
    """What an arm counts for where arms of one idea stand together; an arm that is not named is a strategy of
    its own.
    """

    @property
    def names(self) -> list[str]:
        """The arms' names, in order."""
        return [arm.name for arm in self.arms]

    @property
    def notes(self) -> tuple[str, ...]:
        """What of the trials is missing or inexact; what many have in common is said once."""
        trials_by_note: dict[str, list[str]] = {}
        for arm in self.arms:
            for trial in arm.trials:
                outcome = [] if trial.is_finished else [f"is {trial.status}: it is in no mean"]
                for note in [*outcome, *trial.notes]:
                    trials_by_note.setdefault(note, []).append(trial.name)
        return tuple(f"{_listed(trials)} {note}" for note, trials in trials_by_note.items())


def group_runs(runs: list[Run]) -> Group:
    """Plain runs: those that differ only in the seed are one arm, named by the settings that tell it
    apart.
    """
    alike: dict[str, list[Run]] = {}
    for run in runs:
        alike.setdefault(
            json.dumps(_telling(run), sort_keys=True) if run.config else str(run.path), []
        ).append(run)
    names = _arm_names(list(alike.values()))
    folders = [run.name for run in runs]
    arms = [
        Arm(name, [trial_of_run(run, _run_name(run, folders)) for run in same])
        for name, same in zip(names, alike.values(), strict=True)
    ]
    full = [
        name
        for name, same in zip(names, alike.values(), strict=True)
        if keeps_all(same[0].setting("selection.policy"))
    ]
    return _group(
        "", "runs", arms, full[0] if len(full) == 1 else None, "the arm that trains on everything", FACTORS
    )


def group_study(study: Study) -> Group:
    """A sweep or comparison: its arms as planned, each setting of a sweep an arm of its own."""
    trials: dict[tuple[str, str], list[Cell]] = {}
    for cell in study.cells:
        trials.setdefault((cell.arm, json.dumps(cell.swept, sort_keys=True)), []).append(cell)
    labels = [arm for arm, _ in trials]
    arms = []
    for (label, _), cells in trials.items():
        swept = cells[0].swept
        name = (
            label
            if labels.count(label) == 1
            else ", ".join([label, *(f"{key}={value}" for key, value in swept.items())])
        )
        arms.append(Arm(name, [_trial_of_cell(cell, study, name) for cell in cells], swept, label))
    analysis, plan = study.analysis, study.plan
    is_sweep = study.kind == "sweep"
    group = _group(
        str(plan.get("name") or study.path.name),
        study.kind,
        arms,
        arms[0].name if is_sweep else analysis.get("baseline") or plan.get("baseline"),
        "the first point of the sweep" if is_sweep else "the baseline of the plan",
        plan.get("targets") or FACTORS,
    )
    fixed = [
        target
        for target in analysis.get("targets") or []
        if isinstance(target, dict) and (target.get("error") or 1.0) < 1.0
    ]
    return replace(
        group,
        targets=[Target(target["factor"], target["error"]) for target in fixed] or group.targets,
        swept=list(plan.get("swept") or []),
        stated=dict(analysis.get("arms") or {}),
        strategies={arm: strategy for arm, strategy in (plan.get("strategies") or {}).items() if strategy},
    )


def _group(
    name: str, kind: str, arms: list[Arm], chosen: str | None, why: str, factors: Iterable[float]
) -> Group:
    """Settle the reference: the chosen arm, else the one that ended best; then the targets."""
    by_name = {arm.name: arm for arm in arms}
    if chosen not in by_name:
        ended = [arm for arm in arms if arm.final_errors] if len(arms) > 1 else []
        chosen = min(ended, key=lambda arm: mean(arm.final_errors.values())).name if ended else None
        why = "the arm that ended best, chosen after the runs"
    errors = list(by_name[chosen].final_errors.values()) if chosen and len(arms) > 1 else []
    targets = (
        [Target(factor, factor * mean(errors)) for factor in factors if factor * mean(errors) < 1.0]
        if errors
        else []
    )
    return Group(name, kind, arms, chosen, why, targets)


def _trial_of_cell(cell: Cell, study: Study, arm: str) -> Trial:
    outcome = _outcome(cell)
    status = str(cell.row.get("status") or outcome.get("status") or "planned").replace(
        "running", "unfinished"
    )
    name = f"{arm}, seed {cell.seed}"
    said = outcome.get("error") or cell.row.get("failure")
    reasons = [f"says: {str(said).splitlines()[0]}"] if said else []
    given = study.analysis.get("arms", {}).get(cell.arm, {}).get("curves", {}).get(str(cell.seed), [])
    if given and all(point.get(name) is not None for point in given for name in CURVE):
        return Trial(
            name,
            cell.seed,
            status,
            [Point(**{name: point[name] for name in CURVE}) for point in given],
            cell.row,
            reasons,
        )
    if status == "planned" or not cell.path.is_dir():
        return Trial(name, cell.seed, status, [], cell.row, reasons)
    run = cell.run()
    curve, notes = curve_of(run, outcome.get("started"))
    return Trial(name, cell.seed, status, curve, {**run.summary, **cell.row}, [*reasons, *notes])


def _outcome(cell: Cell) -> dict[str, Any]:
    """How the cell went, as the study noted it beside the cell's folder; {} if it did not."""
    try:
        found = json.loads(cell.path.with_name(f"{cell.name}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _telling(run: Run) -> dict[str, Any]:
    return {key: value for key, value in flatten(run.config).items() if not key.startswith(INDIFFERENT)}


def _arm_names(groups: list[list[Run]]) -> list[str]:
    """A name per group of runs: the settings in which it differs from the others; its folder's name if that
    says more.
    """
    settings = [_telling(runs[0]) for runs in groups]
    keys = list(dict.fromkeys(key for one in settings for key in one))
    differing = [
        key for key in keys if len({json.dumps(one.get(key), sort_keys=True) for one in settings}) > 1
    ]
    is_telling = all(settings) and 0 < len(differing) <= TELLING
    names = []
    for runs, one in zip(groups, settings, strict=True):
        told = ", ".join(
            str(one.get(key)) if key in ("mode", "selection.policy") else f"{key}={one.get(key)}"
            for key in differing
        )
        name = (
            told
            if is_telling
            else runs[0].name
            if len(runs) == 1
            else f"{runs[0].name} and {len(runs) - 1} more"
        )
        names.append(name if name not in names else f"{name} ({_run_name(runs[0], [])})")
    return names


def _run_name(run: Run, folders: list[str]) -> str:
    return run.name if folders.count(run.name) == 1 else f"{run.path.parent.name}/{run.name}"


def _listed(names: list[str]) -> str:
    return "; ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "") + ":"
