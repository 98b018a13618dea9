"""Groups runs into arms, and arms into comparisons with a reference. Knows no picture."""

import json
from dataclasses import dataclass, field
from typing import Any

from sbpipe.config import flatten, keeps_all
from sbpipe.runs.reader import Run
from sbpipe.runs.study.analysis import analyse_comparison, analyse_sweep
from sbpipe.runs.study.arm import Arm
from sbpipe.runs.study.spread import mean_of
from sbpipe.runs.study.study import Cell, Study
from sbpipe.runs.study.targets import FACTORS, Target
from sbpipe.runs.study.trial import trial_of_cell, trial_of_run
from sbpipe.runs.study.worth import analyse_worth

INDIFFERENT = ("seed", "link.", "checkpoint.")
"""Runs that differ only in these settings are one arm."""
TELLING = 3
"""If more settings than this differ, an arm is named by its folder instead."""


@dataclass(frozen=True)
class ArmGroup:
    """Arms that are shown together, and their analysis."""

    name: str
    kind: str
    """`runs`, `sweep`, `comparison` or `worth`."""
    arms: list[Arm]
    analysis: dict[str, Any]
    reference: str | None
    """The arm that differences, speed-ups and targets are relative to."""
    reference_is: str
    """How it was chosen, in words."""
    swept: list[str] = field(default_factory=list)
    strategies: dict[str, str] = field(default_factory=dict)
    """The strategy that each arm counts for; an arm without one counts for itself."""

    @property
    def names(self) -> list[str]:
        """The arms' names, in order."""
        return [arm.name for arm in self.arms]

    @property
    def targets(self) -> list[Target]:
        """The target errors; factors without one are left out."""
        stated = self.analysis["targets"] if len(self.arms) > 1 else []
        return [Target(**target) for target in stated if target["error"] is not None]

    @property
    def notes(self) -> tuple[str, ...]:
        """What is missing or inexact in the trials; a note that many share is given once."""
        trials_by_note: dict[str, list[str]] = {}
        for trial in (trial for arm in self.arms for trial in arm.trials):
            outcome = [] if trial.is_finished else [f"is {trial.status}: it is in no mean"]
            for note in [*outcome, *trial.notes]:
                trials_by_note.setdefault(note, []).append(trial.name)
        return tuple(f"{_listed(trials)} {note}" for note, trials in trials_by_note.items())


def group_runs(runs: list[Run]) -> ArmGroup:
    """Plain runs: those that differ only in the seed are one arm, named by the settings that differ."""
    alike: dict[str, list[Run]] = {}
    for run in runs:
        # Without settings two runs cannot be known to be alike.
        key = json.dumps(_telling(run), sort_keys=True) if run.config else str(run.path)
        alike.setdefault(key, []).append(run)
    names = _arm_names(list(alike.values()))
    folders = [run.name for run in runs]
    arms = [
        Arm(name, [trial_of_run(run, _run_name(run, folders)) for run in same])
        for name, same in zip(names, alike.values(), strict=True)
    ]
    reference, why = _reference(arms, list(alike.values()))
    return ArmGroup("", "runs", arms, analyse_comparison(arms, reference, FACTORS), reference, why)


def group_study(study: Study) -> ArmGroup:
    """A sweep or comparison: its arms as planned, each value of a sweep an arm of its own."""
    arms, plan = _arms_of(study), study.plan
    factors = plan.get("targets") or FACTORS
    strategies = {arm: strategy for arm, strategy in (plan.get("strategies") or {}).items() if strategy}
    if study.kind == "sweep":
        # Fixed before anything runs: a reference chosen by results would favour itself.
        reference, why = arms[0].name, "the first point of the sweep"
        analysis = analyse_sweep(arms, factors)
    else:
        reference, why = plan.get("baseline") or arms[0].name, "the baseline of the plan"
        analysis = analyse_comparison(
            arms, reference, factors, price=plan.get("price"), strategies=strategies
        )
        if study.kind == "worth":
            analysis |= {"worth": analyse_worth(arms, plan.get("budgets") or {})}
    name, swept = str(plan.get("name") or study.path.name), list(plan.get("swept") or [])
    return ArmGroup(name, study.kind, arms, analysis, reference, why, swept, strategies)


def _arms_of(study: Study) -> list[Arm]:
    cells_of: dict[tuple[str, str], list[Cell]] = {}
    for cell in study.cells:
        cells_of.setdefault((cell.arm, json.dumps(cell.swept, sort_keys=True)), []).append(cell)
    labels = [label for label, _ in cells_of]
    arms = []
    for (label, _), cells in cells_of.items():
        told = [f"{key}={value}" for key, value in cells[0].swept.items()]
        name = label if labels.count(label) == 1 else ", ".join([label, *told])
        trials = [trial_of_cell(cell, study, f"{name}, seed {cell.seed}") for cell in cells]
        arms.append(Arm(name, trials, cells[0].swept, label))
    return arms


def _reference(arms: list[Arm], runs: list[list[Run]]) -> tuple[str | None, str]:
    """The reference for plain runs: the one arm that keeps everything, else the one that ended best."""
    policies = [same[0].setting("selection.policy") for same in runs]
    # Two such arms would make the choice arbitrary.
    full = [arm.name for arm, policy in zip(arms, policies, strict=True) if keeps_all(policy)]
    if len(full) == 1:
        return full[0], "the arm that trains on everything"
    ended = {arm.name: mean for arm in arms if (mean := mean_of(arm.errors)) is not None}
    best = min(ended, key=lambda name: ended[name]) if len(arms) > 1 and ended else None
    return best, "the arm that ended best, chosen after the runs"


def _telling(run: Run) -> dict[str, Any]:
    return {key: value for key, value in flatten(run.config).items() if not key.startswith(INDIFFERENT)}


def _arm_names(groups: list[list[Run]]) -> list[str]:
    """A name per group of runs: the settings in which it differs, or its folder's name if these are many."""
    settings = [_telling(runs[0]) for runs in groups]
    keys = list(dict.fromkeys(key for one in settings for key in one))
    differing = [
        key for key in keys if len({json.dumps(one.get(key), sort_keys=True) for one in settings}) > 1
    ]
    is_telling = all(settings) and 0 < len(differing) <= TELLING
    names: list[str] = []
    for runs, one in zip(groups, settings, strict=True):
        told = ", ".join(
            _said(one.get(key)) if key in ("mode", "selection.policy") else f"{key}={_said(one.get(key))}"
            for key in differing
        )
        more = f" and {len(runs) - 1} more" if len(runs) > 1 else ""
        name = told if is_telling else f"{runs[0].name}{more}"
        names.append(name if name not in names else f"{name} ({_run_name(runs[0], [])})")
    return names


def _said(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _run_name(run: Run, folders: list[str]) -> str:
    return run.name if folders.count(run.name) == 1 else f"{run.path.parent.name}/{run.name}"


def _listed(names: list[str]) -> str:
    return "; ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "") + ":"
