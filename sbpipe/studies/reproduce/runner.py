"""Runs the comparisons of an experiment, one resumable folder per task. Judges nothing."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path

from sbpipe.errors import DataError, UserError
from sbpipe.runs.curve import Point
from sbpipe.show.terminal import Display
from sbpipe.studies.comparison_plan import plan_comparison
from sbpipe.studies.conclusion import conclude
from sbpipe.studies.conductor import Conductor
from sbpipe.studies.folder import StudyFolder
from sbpipe.studies.plan import Plan
from sbpipe.studies.provenance import facts_of
from sbpipe.studies.reproduce.experiment import Comparison
from sbpipe.studies.reproduce.findings import Arms
from sbpipe.studies.result import Result
from sbpipe.version import __version__

_CONFIGS = Path("configs") / "cpu"


@dataclass(frozen=True)
class Ran:
    """The result of running one task."""

    arms: Arms
    facts: list[str]
    failed: list[str] = field(default_factory=list)
    is_stopped: bool = False


def configs_folder(given: Path | None) -> Path:
    """Where the experiments' files are: as given, in configs/cpu from here, or beside this package."""
    # The files are not part of the package: only a checkout has them beside it.
    places = [given] if given is not None else [_CONFIGS, Path(__file__).parents[3] / _CONFIGS]
    for place in places:
        if place.is_dir():
            return place
    looked = " nor ".join(map(str, places))
    raise UserError(f"there is no folder {looked}. Give the folder configs/cpu of the project with --configs")


def plan_tasks(
    comparison: Comparison, folder: Path, *, quick: bool, seeds: list[int] | None
) -> dict[str, Plan]:
    """One plan per task, so that experiments which share a task share its runs."""
    path = folder / f"{comparison.file}.toml"
    plan = plan_comparison(path, settings={}, seeds=seeds)
    wanted = comparison.quick_tasks if quick else comparison.tasks
    missing = [task for task in wanted if task not in plan.tasks]
    if missing:
        raise UserError(
            f"{path} has no task {missing[0]!r}, it has {', '.join(plan.tasks)}. Give the project's own file"
        )
    return {task: replace(plan.of_task(task), name=f"{plan.name}, {task}", tasks=[task]) for task in wanted}


def refuse_missing_data(plans: Sequence[Plan]) -> None:
    """Look for every file of arrays before anything starts."""
    for cell in (cell for plan in plans for cell in plan.cells):
        if cell.settings.get("data.name") == "arrays":
            refuse_missing_arrays(cell.settings.get("data.path", ""))


def refuse_missing_arrays(path: str) -> None:
    """Look for one file of arrays."""
    if not Path(path).expanduser().is_file():
        way_out = (
            "Make it as configs/compare/delay.toml says, or give --quick, which needs the embedded data only"
        )
        raise DataError(f"data.path = {path!r}: there is no such file, seen from {os.getcwd()}. {way_out}")


def run_task(plan: Plan, path: Path, *, resume_with: str, retry: bool) -> Ran:
    """Run the remaining cells of one task, and write the tables that `sbpipe compare` writes."""
    folder = StudyFolder(path, plan)
    try:
        outcome = Conductor(plan, folder, Display(), retry=retry).run()
        conclude(outcome, path, resume_with=resume_with, with_report=False)
    finally:
        folder.close()
    failed = [f"{result.cell.label}: {result.state.error}" for result in outcome.failed]
    return Ran(curves_of(plan, outcome.results), facts_of(plan, outcome.results), failed, outcome.is_stopped)


def curves_of(plan: Plan, results: Sequence[Result]) -> Arms:
    """The curves of finished cells by arm and seed; an arm of which none finished is empty."""
    arms: dict[str, dict[int | None, list[Point]]] = {arm: {} for arm in plan.arms}
    for result in results:
        if result.is_finished and result.curve:
            arms[result.cell.arm][result.cell.seed] = result.curve
    return arms


def machine_facts() -> list[str]:
    """The facts on the machine for a reader; taken before a measurement, which is a load by itself."""
    from sbpipe.machine.doctor.host import cpu

    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    facts = [
        f"processor: {cpu().model}, {cores} cores",
        f"versions: sbpipe {__version__}, torch {metadata.version('torch')}",
    ]
    busy = (
        f"caution: the machine was busy with other things (load {load:.1f} on {cores} cores); do not "
        "trust times"
    )
    return [*facts, *([busy] if load > cores else [])]
